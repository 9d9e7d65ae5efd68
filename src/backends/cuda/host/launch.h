// What every host side of a kernel does: checks of addresses, and the launch.
#pragma once

#include <array>
#include <cstdint>

#include "backends/cuda/host/driver.h"
#include "onepass/attention.h"
#include "store/store.h"

namespace onepass::cuda {

/// @throws InvalidArgument, naming `name`, unless `pointer` is memory of that GPU and aligned
/// to `alignment` bytes, or the call's own (StreamMemory).
void check_pointer(const Driver& driver, const char* call, const char* name, const void* pointer,
                   int device_idx, int alignment);

/// Addresses of what a kernel takes, in its order; none of ours takes more.
using KernelParameters = std::array<void*, 4>;

/// Queues `grid` blocks of a kernel; the device's context is current.
void launch_kernel(const Driver& driver, const LoadedKernel& kernel, std::int64_t grid,
                   KernelParameters parameters, Stream stream);

}  // namespace onepass::cuda
