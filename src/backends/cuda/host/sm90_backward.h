// What the kernels of sm90/backward*.cuh are launched with.
#pragma once

#include <cstddef>
#include <span>

#include "backends/cuda/host/tensor_map.h"
#include "backends/cuda/kernels/params.h"
#include "onepass/attention.h"
#include "plan/planned_kernel.h"

namespace onepass::cuda {

/// Tensor maps, the order of tiles, sums and counters, around what every backward kernel takes. `kernel` is
/// of family Sm90Backward.
Sm90BackwardParams sm90_backward_params(const Plan& plan, const PlannedKernel& kernel,
                                        const BackwardArguments& args, std::span<std::byte> workspace,
                                        const BackwardParams& backward, const TensorMapEncoder& encode);

}  // namespace onepass::cuda
