// What the kernels of sm90/decode.cuh are launched with.
#pragma once

#include <cstddef>
#include <span>

#include "backends/cuda/host/tensor_map.h"
#include "backends/cuda/kernels/params.h"
#include "onepass/attention.h"
#include "plan/planned_kernel.h"

namespace onepass::cuda {

/// Tensor maps, boxes and the counts of a launch, around what every kernel takes.
Sm90DecodeParams sm90_decode_params(const Plan& plan, const PlannedKernel& kernel,
                                    const ForwardArguments& args, std::span<std::byte> workspace,
                                    const ForwardParams& forward, const TensorMapEncoder& encode);

}  // namespace onepass::cuda
