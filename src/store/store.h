// Where kernels come from: memory, the shipped bundle, the disk cache, the run-time compiler, in that order.
#pragma once

#include <string>
#include <vector>

#include "backends/cuda/host/driver.h"
#include "store/kernel_spec.h"

namespace onepass {

struct LoadedKernel {
  cuda::CUfunction function = nullptr;
  int num_threads = 0;
  std::size_t shared_bytes = 0;
};

enum class KernelOrigin { Memory, Bundle, Disk, Compiled };

class KernelStore {
 public:
  static KernelStore& instance();

  /// The kernel, loaded into the device's primary context (which must be current). Thread-safe.
  /// @throws EnvironmentError when no source has it: no bundle entry, no cache entry, no compiler.
  const LoadedKernel& get(const KernelSpec& spec, int device_idx, KernelOrigin* origin = nullptr);

 private:
  KernelStore() = default;
};

}  // namespace onepass
