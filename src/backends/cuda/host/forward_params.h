// From a plan and a call's arguments to what its kernels are launched with.
#pragma once

#include <cstddef>
#include <span>

#include "backends/cuda/kernels/params.h"
#include "onepass/attention.h"

namespace onepass::cuda {

/// Everything but error_flag. Pointers are copied, never followed.
ForwardParams forward_params(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace);

}  // namespace onepass::cuda
