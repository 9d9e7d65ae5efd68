// Where kernels come from: memory, the shipped bundle, the disk cache, the run-time compiler, in that order.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "backends/cuda/host/driver.h"
#include "store/kernel_image.h"
#include "store/kernel_spec.h"

namespace onepass {

struct LoadedKernel {
  int device_idx = 0;
  cuda::CUfunction function = nullptr;
  int num_threads = 0;
  std::size_t shared_bytes = 0;
  int registers = 0;  // of a thread, as the driver tells
};

class KernelStore {
 public:
  static KernelStore& instance();

  /// The kernel, loaded into the device's primary context (which must be current). It stays there, and the
  /// reference valid, for the life of the process. Thread-safe.
  /// @throws EnvironmentError with what each source said, when none has an image that the driver loads.
  const LoadedKernel& get(const KernelSpec& spec, int device_idx, KernelOrigin* origin = nullptr);

 private:
  KernelStore() = default;

  std::mutex mutex_;
  std::map<std::pair<int, std::string>, LoadedKernel> loaded_;
};

}  // namespace onepass
