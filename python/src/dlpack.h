// The parts of DLPack that are read here (dmlc/dlpack, include/dlpack/dlpack.h, version 1.x), declared by us:
// they are an ABI, and this way no header has to be found. The C exchange table came with 1.2.
#pragma once

#include <cstdint>

namespace onepass::python::dlpack {

inline constexpr std::uint32_t kMajor = 1;  // the version of the structs below
inline constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3;

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
/// Functions return 0, or -1 and have set a Python exception.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;  ///< the table of an older major version
  /// A new tensor of the library's, of the prototype's shape, dtype and device. Errors go to set_error.
  int (*managed_tensor_allocator)(Tensor* prototype, ManagedTensorVersioned** out, void* error_context,
                                  void (*set_error)(void* error_context, const char* kind,
                                                    const char* message));
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  /// Null where a library cannot do it. What `out` points to lives until the object changes.
  int (*tensor_from_py_object)(void* object, Tensor* out);
  int (*current_work_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

}  // namespace onepass::python::dlpack
