// Backward on an NVIDIA GPU: checks pointers, fills BackwardParams, launches the plan's kernels.
#pragma once

#include <cstddef>
#include <span>

#include "backends/cuda/kernels/params.h"
#include "onepass/attention.h"

namespace onepass::cuda {

/// `workspace` is device memory. Returns when the kernels are queued on the stream.
/// @throws InvalidArgument for a pointer that is not memory of the call's device or not aligned as the plan's
///   kernels read it, EnvironmentError when the driver fails; nothing is launched then.
void run_backward(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace,
                  Stream stream);

/// The part of a call that plan.parts[part] is for: its heads of every tensor that has heads.
BackwardArguments part_arguments(const Plan& plan, std::size_t part, const BackwardArguments& args);

/// Everything but error_flag. Pointers are copied, never followed.
BackwardParams backward_params(const Plan& plan, const BackwardArguments& args,
                               std::span<std::byte> workspace);

}  // namespace onepass::cuda
