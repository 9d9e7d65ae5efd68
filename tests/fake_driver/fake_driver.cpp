#include "tests/fake_driver/fake_driver.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace onepass::cuda {

struct CUctx_st {
  int device_idx;
};
struct CUmod_st {};
struct CUfunc_st {
  std::string name;
  int device_idx;
};

}  // namespace onepass::cuda

namespace onepass::fake {
namespace {

using cuda::CUcontext;
using cuda::CUdevice;
using cuda::CUdeviceptr;
using cuda::CUevent;
using cuda::CUfunction;
using cuda::CUmodule;
using cuda::CUresult;
using cuda::CUstream;

constexpr CUresult kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500;
constexpr std::size_t kRoom = 256;

std::array<cuda::CUctx_st, kNumDevices> contexts = {{{0}, {1}}};
thread_local std::vector<CUcontext> current;

constexpr int kHost = -1, kOfGraph = -3;
struct Range {
  std::size_t bytes;
  int device_idx;  // or kHost: memory that the driver gave for the CPU; kOfGraph: while a stream was captured
};

/// What threads share, as long as the process. The log belongs to it.
struct Shared {
  std::mutex mutex;
  std::map<CUdeviceptr, Range> ranges;                               // by their first address
  std::map<std::pair<int, std::string>, cuda::CUfunc_st> functions;  // by device and name
};
Shared& shared = *new Shared;

CUdeviceptr allocate(std::size_t bytes, int device_idx) {
  const std::size_t whole = std::max<std::size_t>(1, (bytes + 255) / 256) * 256;
  const CUdeviceptr address = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(256, whole));
  const std::lock_guard lock(shared.mutex);
  shared.ranges[address] = {whole, device_idx};
  return address;
}

CUresult release(CUdeviceptr address) {
  const std::lock_guard lock(shared.mutex);
  if (shared.ranges.erase(address) == 0) return kInvalidValue;
  std::free(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)));
  return 0;
}

void note(const char* call) {
  const std::lock_guard lock(shared.mutex);
  log().calls.push_back(call);
}

}  // namespace

void Log::clear() {
  calls.clear();
  launches.clear();
  calls.reserve(kRoom);
  launches.reserve(kRoom);
}

Log& log() {
  static Log kept;
  return kept;
}

std::byte* device_memory(std::size_t bytes, int device_idx) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(allocate(bytes, device_idx)));
}

std::string& missing_kernel() {
  static std::string name;
  return name;
}

bool& captures() {
  static bool are_captured = false;
  return are_captured;
}

int current_device() { return current.empty() ? -1 : current.back()->device_idx; }

// NOLINTBEGIN(readability-identifier-naming): the driver's names
extern "C" {

CUresult cuInit(unsigned) { return 0; }
CUresult cuDriverGetVersion(int* version) {
  *version = ONEPASS_FAKE_IS_OLD ? 11080 : 13000;
  return 0;
}
CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE";
  return 0;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "as a test wanted";
  return 0;
}
CUresult cuDeviceGetCount(int* count) {
  *count = kNumDevices;
  return 0;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < kNumDevices ? 0 : kInvalidValue;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::strncpy(name, "a fake of NVIDIA H200", static_cast<std::size_t>(length) - 1);
  return 0;
}
CUresult cuDeviceGetAttribute(int* value, cuda::DeviceAttribute attribute, CUdevice) {
  switch (attribute) {
    case cuda::kMaxSharedBytesPerBlockOptin: *value = 227 * 1024; return 0;
    case cuda::kMultiprocessorCount: *value = 132; return 0;
    case cuda::kL2CacheBytes: *value = 50 << 20; return 0;
    case cuda::kComputeCapabilityMajor: *value = 9; return 0;
    case cuda::kComputeCapabilityMinor: *value = 0; return 0;
  }
  return kInvalidValue;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = std::size_t{1} << 37;
  return 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  note("cuDevicePrimaryCtxRetain");
  *context = &contexts.at(static_cast<std::size_t>(device));
  return 0;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  note("cuCtxGetCurrent");
  *context = current.empty() ? nullptr : current.back();
  return 0;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  note("cuCtxPushCurrent");
  current.push_back(context);
  return 0;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  note("cuCtxPopCurrent");
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return 0;
}
CUresult cuPointerGetAttributes(unsigned count, cuda::PointerAttribute* attributes, void** values,
                                CUdeviceptr address) {
  note("cuPointerGetAttributes");
  const std::lock_guard lock(shared.mutex);
  const auto after = shared.ranges.upper_bound(address);
  const auto range = after == shared.ranges.begin() ? shared.ranges.end() : std::prev(after);
  const bool known = range != shared.ranges.end() && address < range->first + range->second.bytes;
  const int device_idx = known ? range->second.device_idx : -2;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == cuda::kPointerMemoryType) {
      *static_cast<unsigned*>(values[i]) = device_idx >= 0       ? cuda::kMemoryDevice
                                           : device_idx == kHost ? cuda::kMemoryHost
                                                                 : cuda::MemoryType{};
    } else if (attributes[i] == cuda::kPointerDeviceOrdinal) {
      *static_cast<int*>(values[i]) = device_idx;
    } else {
      return kInvalidValue;
    }
  }
  return 0;
}
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  note("cuModuleLoadData");
  static cuda::CUmod_st loaded;
  *module = &loaded;
  return 0;
}
CUresult cuModuleUnload(CUmodule) { return 0; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  note("cuModuleGetFunction");
  if (name == missing_kernel()) return kNotFound;
  if (current.empty()) return kInvalidContext;
  const int device_idx = current_device();
  const std::lock_guard lock(shared.mutex);
  *function =
      &shared.functions.try_emplace({device_idx, name}, cuda::CUfunc_st{name, device_idx}).first->second;
  return 0;
}
CUresult cuFuncGetAttribute(int* value, cuda::FunctionAttribute attribute, CUfunction) {
  *value = attribute == cuda::kFunctionNumRegisters ? kNumRegisters : 0;
  return 0;
}
CUresult cuFuncSetAttribute(CUfunction, cuda::FunctionAttribute, int) {
  note("cuFuncSetAttribute");
  return 0;
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** params, void**) {
  note("cuLaunchKernel");
  if (function->device_idx != current_device()) return kInvalidHandle;
  Launch launch{&function->name, current_device(), grid_x, block_x, shared_bytes, stream, {}, {}, {}};
  if (function->name.starts_with("sm90_forward")) {
    std::memcpy(&launch.sm90, params[0], sizeof(launch.sm90));
    launch.params = launch.sm90.forward;
  } else if (function->name.starts_with("sm90_decode")) {
    std::memcpy(&launch.decode, params[0], sizeof(launch.decode));
    launch.params = launch.decode.forward;
  } else if (function->name.starts_with("sm80_forward") || function->name.starts_with("merge_splits")) {
    std::memcpy(&launch.params, params[0], sizeof(launch.params));
  }  // others have parameters of their own, maybe fewer
  const std::lock_guard lock(shared.mutex);
  log().launches.push_back(launch);
  return grid_y * grid_z * block_y * block_z == 1 ? 0 : kInvalidValue;
}
#if !ONEPASS_FAKE_IS_OLD
CUresult cuTensorMapEncodeTiled(void* map, int, unsigned, void* address, const std::uint64_t*,
                                const std::uint64_t*, const unsigned*, const unsigned*, int, int, int, int) {
  note("cuTensorMapEncodeTiled");
  std::memset(map, kMapFill, sizeof(cuda::TensorMap));
  std::memcpy(map, &address, sizeof(address));
  return 0;
}
#endif
CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  if (current.empty()) return kInvalidContext;
  *address = allocate(bytes, current_device());
  return 0;
}
CUresult cuMemFree_v2(CUdeviceptr address) { return release(address); }
CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream) {
  note("cuMemAllocAsync");
  if (current.empty()) return kInvalidContext;
  *address = allocate(bytes, captures() ? kOfGraph : current_device());
  return 0;
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream) {
  note("cuMemFreeAsync");
  return release(address);
}
CUresult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  note("cuMemHostAlloc");
  *memory = reinterpret_cast<void*>(static_cast<std::uintptr_t>(allocate(bytes, kHost)));
  return 0;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)), from, bytes);
  return 0;
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<void*>(static_cast<std::uintptr_t>(from)), bytes);
  return 0;
}
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t bytes) {
  std::memset(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)), value, bytes);
  return 0;
}
CUresult cuStreamSynchronize(CUstream) { return 0; }
CUresult cuEventCreate(CUevent*, unsigned) { return 0; }
CUresult cuEventRecord(CUevent, CUstream) { return 0; }
CUresult cuEventSynchronize(CUevent) { return 0; }
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
  *milliseconds = 1;
  return 0;
}
CUresult cuEventDestroy_v2(CUevent) { return 0; }
/// For NVRTC, which falls over a driver without this function.
CUresult cuGetExportTable(const void**, const void*) { return kNotFound; }

}  // extern "C"
// NOLINTEND(readability-identifier-naming)

}  // namespace onepass::fake
