#include "backends/cuda/host/driver.h"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "onepass/error.h"
#include "support/message.h"
#include "support/shared_object.h"

namespace onepass::cuda {
namespace {

constexpr bool kLooksForGpus = ONEPASS_CUDA;  // the CMake option of that name
constexpr int kOldestDriver = 11020;          // stream-ordered allocation

std::string& reason_storage() {
  static std::string reason;
  return reason;
}

}  // namespace

bool Driver::open(std::string& reason) {
  if (!kLooksForGpus) {
    reason = "this build looks for none (CMake option ONEPASS_CUDA=OFF)";
    return false;
  }
  const SharedObject library("libcuda.so.1");
  if (!library.valid()) {
    reason = fmt::format("no NVIDIA driver here ({})", library.error());
    return false;
  }
  DriverTable& t = table_;
#define ONEPASS_LOAD(name) library.load(t.name, #name)
  const bool complete =
      ONEPASS_LOAD(cuInit) && ONEPASS_LOAD(cuDriverGetVersion) && ONEPASS_LOAD(cuGetErrorName) &&
      ONEPASS_LOAD(cuGetErrorString) && ONEPASS_LOAD(cuDeviceGetCount) && ONEPASS_LOAD(cuDeviceGet) &&
      ONEPASS_LOAD(cuDeviceGetName) && ONEPASS_LOAD(cuDeviceGetAttribute) &&
      ONEPASS_LOAD(cuDeviceTotalMem_v2) && ONEPASS_LOAD(cuDevicePrimaryCtxRetain) &&
      ONEPASS_LOAD(cuCtxGetCurrent) && ONEPASS_LOAD(cuCtxPushCurrent_v2) &&
      ONEPASS_LOAD(cuCtxPopCurrent_v2) && ONEPASS_LOAD(cuPointerGetAttributes) &&
      ONEPASS_LOAD(cuModuleLoadData) && ONEPASS_LOAD(cuModuleUnload) && ONEPASS_LOAD(cuModuleGetFunction) &&
      ONEPASS_LOAD(cuFuncGetAttribute) && ONEPASS_LOAD(cuFuncSetAttribute) && ONEPASS_LOAD(cuLaunchKernel) &&
      ONEPASS_LOAD(cuMemAlloc_v2) && ONEPASS_LOAD(cuMemFree_v2) && ONEPASS_LOAD(cuMemAllocAsync) &&
      ONEPASS_LOAD(cuMemFreeAsync) && ONEPASS_LOAD(cuMemHostAlloc) && ONEPASS_LOAD(cuMemcpyHtoD_v2) &&
      ONEPASS_LOAD(cuMemcpyDtoH_v2) && ONEPASS_LOAD(cuMemsetD8_v2) && ONEPASS_LOAD(cuStreamSynchronize) &&
      ONEPASS_LOAD(cuEventCreate) && ONEPASS_LOAD(cuEventRecord) && ONEPASS_LOAD(cuEventSynchronize) &&
      ONEPASS_LOAD(cuEventElapsedTime) && ONEPASS_LOAD(cuEventDestroy_v2);
  (void)ONEPASS_LOAD(cuTensorMapEncodeTiled);  // for sm_90 alone, whose users have newer drivers
#undef ONEPASS_LOAD
  if (!complete || t.cuDriverGetVersion(&version_) != 0 || version_ < kOldestDriver) {
    reason = fmt::format("the NVIDIA driver is too old (CUDA {}.{}; 11.2 is needed)", version_ / 1000,
                         version_ % 1000 / 10);
    return false;
  }
  if (const CUresult result = t.cuInit(0); result != 0) {
    const char* name = nullptr;
    t.cuGetErrorName(result, &name);
    reason = fmt::format("the NVIDIA driver does not start ({})", name != nullptr ? name : "unknown error");
    return false;
  }
  if (t.cuDeviceGetCount(&num_devices_) != 0 || num_devices_ == 0) {
    reason = "the NVIDIA driver sees no GPU";
    return false;
  }
  contexts_ = std::vector<std::atomic<CUcontext>>(static_cast<std::size_t>(num_devices_));
  return true;
}

const Driver* Driver::instance() {
  static const Driver* const driver = [] {
    auto* fresh = new Driver;  // lives as long as the process: contexts outlive static destructors
    if (fresh->open(reason_storage())) return fresh;
    delete fresh;
    return static_cast<Driver*>(nullptr);
  }();
  return driver;
}

const std::string& Driver::missing_reason() {
  instance();
  return reason_storage();
}

const Driver& Driver::required(const char* call) {
  if (const Driver* driver = instance(); driver != nullptr) return *driver;
  throw EnvironmentError(format_message(call, missing_reason(), "an NVIDIA GPU with its driver",
                                        "use backend 'cpu', or install the driver"));
}

void Driver::check_device(const char* call, const char* name, int device_idx) const {
  if (device_idx >= 0 && device_idx < num_devices_) return;
  throw_invalid(call,
                fmt::format("{} is on GPU {}, and there {} {}", name, device_idx,
                            num_devices_ == 1 ? "is" : "are", num_devices_),
                fmt::format("GPU 0 to {}", num_devices_ - 1), "correct device_idx of the views");
}

std::string Driver::error_text(CUresult result) const {
  const char *name = nullptr, *text = nullptr;
  table_.cuGetErrorName(result, &name);
  table_.cuGetErrorString(result, &text);
  return fmt::format("{} ({})", name != nullptr ? name : "an unknown error",
                     text != nullptr ? text : "no text");
}

void Driver::check(CUresult result, const char* what) const {
  if (result == 0) return;
  throw EnvironmentError(format_message(what,
                                        fmt::format("the NVIDIA driver answered {}", error_text(result)),
                                        "a working GPU and enough of its memory",
                                        "see the driver's message; other work on the GPU may have failed"));
}

int Driver::attribute(DeviceAttribute attribute, int device_idx) const {
  CUdevice device = 0;
  int value = 0;
  check(table_.cuDeviceGet(&device, device_idx), "cuDeviceGet");
  check(table_.cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
  return value;
}

std::string Driver::device_name(int device_idx) const {
  CUdevice device = 0;
  char name[256] = {};
  check(table_.cuDeviceGet(&device, device_idx), "cuDeviceGet");
  check(table_.cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
  return name;
}

std::size_t Driver::device_memory_bytes(int device_idx) const {
  CUdevice device = 0;
  std::size_t bytes = 0;
  check(table_.cuDeviceGet(&device, device_idx), "cuDeviceGet");
  check(table_.cuDeviceTotalMem_v2(&bytes, device), "cuDeviceTotalMem");
  return bytes;
}

int Driver::compute_capability(int device_idx) const {
  return 10 * attribute(kComputeCapabilityMajor, device_idx) + attribute(kComputeCapabilityMinor, device_idx);
}

CUcontext Driver::primary_context(int device_idx) const {
  std::atomic<CUcontext>& kept = contexts_.at(static_cast<std::size_t>(device_idx));
  if (const CUcontext context = kept.load(std::memory_order_acquire); context != nullptr) return context;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  CUcontext context = kept.load(std::memory_order_relaxed);
  if (context == nullptr) {
    CUdevice device = 0;
    check(table_.cuDeviceGet(&device, device_idx), "cuDeviceGet");
    check(table_.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    kept.store(context, std::memory_order_release);
  }
  return context;
}

bool Driver::device_of(const void* pointer, int& device_idx) const {
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
  unsigned type = 0;  // stays so for memory that the driver does not know
  int ordinal = -1;
  std::array attributes = {kPointerMemoryType, kPointerDeviceOrdinal};
  std::array<void*, 2> values = {&type, &ordinal};
  if (table_.cuPointerGetAttributes(2, attributes.data(), values.data(), address) != 0) return false;
  if (type != kMemoryDevice) return false;
  device_idx = ordinal;
  return true;
}

ContextScope::ContextScope(const Driver& driver, int device_idx) : driver_(driver) {
  const CUcontext wanted = driver.primary_context(device_idx);
  CUcontext current = nullptr;
  if (driver.api().cuCtxGetCurrent(&current) == 0 && current == wanted) return;
  driver.check(driver.api().cuCtxPushCurrent_v2(wanted), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  CUcontext previous = nullptr;
  driver_.api().cuCtxPopCurrent_v2(&previous);
}

}  // namespace onepass::cuda
