// The steps of a forward plan on the emulator, one after another, as the host queues them.
#pragma once

#include <cstddef>
#include <span>

#include "backends/cuda/host/tensor_map.h"
#include "backends/cuda/kernels/params.h"
#include "onepass/attention.h"

namespace onepass::emulator {

/// As the driver would write it.
cuda::TensorMap encode(const cuda::TiledTensor& tensor);

/// Fails the test when a kernel faults, or reports a length or page out of bounds.
void run_plan(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace);

}  // namespace onepass::emulator
