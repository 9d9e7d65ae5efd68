// The CUDA driver, opened at run time: the few functions we call, declared by us so that building
// needs no toolkit.
//
// Driver::instance() is null where there is no driver, and missing_reason() says why.
// Every call that fails throws EnvironmentError with the driver's own name of the error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace onepass::cuda {

using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUdeviceptr = unsigned long long;
using CUresult = int;

// NOLINTBEGIN(readability-identifier-naming): the names of the driver and its values

/// Values of the driver API's enumerations that we use (cuda.h, stable since CUDA 7).
enum DeviceAttribute : int {
  kMaxSharedBytesPerBlockOptin = 97,
  kMultiprocessorCount = 16,
  kL2CacheBytes = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
};
enum PointerAttribute : int { kPointerMemoryType = 2, kPointerDeviceOrdinal = 9 };
enum FunctionAttribute : int {
  kFunctionLocalBytes = 3,
  kFunctionNumRegisters = 4,
  kFunctionMaxDynamicSharedBytes = 8,
};
enum MemoryType : unsigned { kMemoryHost = 1, kMemoryDevice = 2 };

/// Entry points of libcuda.so.1, by the names under which the library exports them.
struct DriverTable {
  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int* version);
  CUresult (*cuGetErrorName)(CUresult, const char** name);
  CUresult (*cuGetErrorString)(CUresult, const char** text);
  CUresult (*cuDeviceGetCount)(int* count);
  CUresult (*cuDeviceGet)(CUdevice*, int ordinal);
  CUresult (*cuDeviceGetName)(char* name, int length, CUdevice);
  CUresult (*cuDeviceGetAttribute)(int* value, DeviceAttribute, CUdevice);
  CUresult (*cuDeviceTotalMem_v2)(std::size_t* bytes, CUdevice);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice);
  CUresult (*cuCtxGetCurrent)(CUcontext*);
  CUresult (*cuCtxPushCurrent_v2)(CUcontext);
  CUresult (*cuCtxPopCurrent_v2)(CUcontext*);
  CUresult (*cuPointerGetAttributes)(unsigned count, PointerAttribute*, void** values, CUdeviceptr);
  CUresult (*cuModuleLoadData)(CUmodule*, const void* image);
  CUresult (*cuModuleUnload)(CUmodule);
  CUresult (*cuModuleGetFunction)(CUfunction*, CUmodule, const char* name);
  CUresult (*cuFuncGetAttribute)(int* value, FunctionAttribute, CUfunction);
  CUresult (*cuFuncSetAttribute)(CUfunction, FunctionAttribute, int value);
  CUresult (*cuLaunchKernel)(CUfunction, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream,
                             void** params, void** extra);
  CUresult (*cuMemAlloc_v2)(CUdeviceptr*, std::size_t bytes);
  CUresult (*cuMemFree_v2)(CUdeviceptr);
  CUresult (*cuMemAllocAsync)(CUdeviceptr*, std::size_t bytes, CUstream);
  CUresult (*cuMemFreeAsync)(CUdeviceptr, CUstream);
  CUresult (*cuMemHostAlloc)(void**, std::size_t bytes, unsigned flags);
  CUresult (*cuMemcpyHtoD_v2)(CUdeviceptr, const void*, std::size_t bytes);
  CUresult (*cuMemcpyDtoH_v2)(void*, CUdeviceptr, std::size_t bytes);
  CUresult (*cuMemsetD8_v2)(CUdeviceptr, unsigned char value, std::size_t bytes);
  CUresult (*cuStreamSynchronize)(CUstream);
  CUresult (*cuEventCreate)(CUevent*, unsigned flags);
  CUresult (*cuEventRecord)(CUevent, CUstream);
  CUresult (*cuEventSynchronize)(CUevent);
  CUresult (*cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end);
  CUresult (*cuEventDestroy_v2)(CUevent);
  CUresult (*cuTensorMapEncodeTiled)(void* map, int type, unsigned rank, void* address,
                                     const std::uint64_t* extents, const std::uint64_t* strides,
                                     const unsigned* box, const unsigned* element_strides, int interleave,
                                     int swizzle, int l2_promotion, int fill);  // null before CUDA 12
};

// NOLINTEND(readability-identifier-naming)

class Driver {
 public:
  /// The driver with at least one device, or null; asked once per process.
  static const Driver* instance();
  /// Why instance() is null: no library, too old, no device.
  static const std::string& missing_reason();

  const DriverTable& api() const { return table_; }
  int version() const { return version_; }  ///< 13000 for CUDA 13.0
  int num_devices() const { return num_devices_; }
  /// The driver, where one is needed. @throws EnvironmentError naming `call` when there is none.
  static const Driver& required(const char* call);

  /// @throws InvalidArgument unless there is a GPU of that index; `name` is the tensor that names it.
  void check_device(const char* call, const char* name, int device_idx) const;

  /// The driver's name of a result, and its text: "CUDA_ERROR_INVALID_PTX (a PTX JIT compilation failed)".
  std::string error_text(CUresult result) const;
  /// @throws EnvironmentError naming `what` when `result` is an error.
  void check(CUresult result, const char* what) const;

  int attribute(DeviceAttribute attribute, int device_idx) const;
  std::string device_name(int device_idx) const;
  std::size_t device_memory_bytes(int device_idx) const;
  /// 90 for compute capability 9.0.
  int compute_capability(int device_idx) const;
  /// The device's primary context, retained once per process.
  CUcontext primary_context(int device_idx) const;
  /// Whether `pointer` is device (or managed) memory, and of which device. False for host memory the driver
  /// does not know.
  bool device_of(const void* pointer, int& device_idx) const;

 private:
  Driver() = default;
  bool open(std::string& reason);

  DriverTable table_{};
  int version_ = 0;
  int num_devices_ = 0;
  mutable std::vector<std::atomic<CUcontext>> contexts_;  // by device; null until first asked for
};

/// Makes a device's primary context current, unless it is; the one before is current again at the end of the
/// scope.
class ContextScope {
 public:
  ContextScope(const Driver& driver, int device_idx);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace onepass::cuda
