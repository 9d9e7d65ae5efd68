// What every host side of a kernel does: checks of addresses, and the launch.
#pragma once

#include <array>
#include <cstdint>

#include "backends/cuda/host/driver.h"
#include "onepass/attention.h"
#include "store/store.h"

namespace onepass::cuda {

/// @throws InvalidArgument, naming `name`, unless `pointer` is memory of that GPU and aligned
/// to `alignment` bytes.
void check_pointer(const Driver& driver, const char* call, const char* name, const void* pointer,
                   int device_idx, int alignment);

/// Queues `grid` blocks of a kernel; the device's context is current. `params` is what the kernel takes.
template <class Params>
void launch_kernel(const Driver& driver, const LoadedKernel& kernel, std::int64_t grid, Params& params,
                   Stream stream) {
  std::array<void*, 1> parameters = {&params};
  driver.check(driver.api().cuLaunchKernel(kernel.function, static_cast<unsigned>(grid), 1, 1,
                                           static_cast<unsigned>(kernel.num_threads), 1, 1,
                                           static_cast<unsigned>(kernel.shared_bytes),
                                           static_cast<CUstream>(stream.handle), parameters.data(), nullptr),
               "cuLaunchKernel");
}

}  // namespace onepass::cuda
