// What the kernels of sm90/forward.cuh are launched with.
#pragma once

#include <cstddef>
#include <span>

#include "backends/cuda/host/driver.h"
#include "backends/cuda/kernels/params.h"
#include "onepass/attention.h"
#include "plan/planned_kernel.h"

namespace onepass::cuda {

/// Tensor maps, the order of tiles and the ticket, around what every kernel takes.
/// @throws EnvironmentError when the driver makes no tensor maps.
Sm90ForwardParams sm90_forward_params(const Driver& driver, const Plan& plan, const PlannedKernel& kernel,
                                      const ForwardArguments& args, std::span<std::byte> workspace,
                                      const ForwardParams& forward);

}  // namespace onepass::cuda
