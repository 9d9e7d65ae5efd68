#include "backends/cuda/host/launch.h"

#include <fmt/format.h>

#include "backends/cuda/host/stream_memory.h"
#include "support/message.h"

namespace onepass::cuda {

void check_pointer(const Driver& driver, const char* call, const char* name, const void* pointer,
                   int device_idx, int alignment) {
  if (StreamMemory::holds(pointer)) return;
  int actual = -1;
  if (!driver.device_of(pointer, actual)) {
    throw_invalid(call,
                  fmt::format("{} is said to be on GPU {}, but its address is host memory", name, device_idx),
                  "device memory", fmt::format("copy {} to the GPU", name));
  }
  if (actual != device_idx) {
    throw_invalid(call,
                  fmt::format("{} is memory of GPU {}, but the call is for GPU {}", name, actual, device_idx),
                  "all tensors of a call on one GPU", fmt::format("copy {} to GPU {}", name, device_idx));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address % static_cast<std::uintptr_t>(alignment) != 0) {
    throw_invalid(
        call, fmt::format("{} starts at address {:#x}", name, address),
        fmt::format("a multiple of {} bytes: with these strides rows are read in such pieces", alignment),
        fmt::format("copy {} to aligned memory", name));
  }
}

void launch_kernel(const Driver& driver, const LoadedKernel& kernel, std::int64_t grid,
                   KernelParameters parameters, Stream stream) {
  driver.check(driver.api().cuLaunchKernel(kernel.function, static_cast<unsigned>(grid), 1, 1,
                                           static_cast<unsigned>(kernel.num_threads), 1, 1,
                                           static_cast<unsigned>(kernel.shared_bytes),
                                           static_cast<CUstream>(stream.handle), parameters.data(), nullptr),
               "cuLaunchKernel");
}

}  // namespace onepass::cuda
