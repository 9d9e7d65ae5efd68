// The parts of DLPack that are read here (dmlc/dlpack, include/dlpack/dlpack.h, version 1.x), declared by us:
// they are an ABI, and this way no header has to be found. The C exchange table came with 1.2.
#pragma once

#include <cstdint>

namespace onepass::python::dlpack {

struct Version {
  std::uint32_t major, minor;
};

struct Device {
  std::int32_t device_type, device_id;
};

struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

/// In a capsule named "dltensor".
struct ManagedTensor {
  Tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};

/// In a capsule named "dltensor_versioned".
struct ManagedTensorVersioned {
  static constexpr std::uint64_t kReadOnly = 1;

  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor dl_tensor;
};

/// In a capsule named "dlpack_exchange_api", the attribute __dlpack_c_exchange_api__ of an array's type.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;  ///< the table of an older major version
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  /// 0, or -1 and a Python exception. Null where a library cannot do it. What `out` points to lives until the
  /// object changes.
  int (*tensor_from_py_object)(void* object, Tensor* out);
  void* current_work_stream;
};

}  // namespace onepass::python::dlpack
