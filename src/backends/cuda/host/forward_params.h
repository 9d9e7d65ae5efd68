// From a plan and a call's arguments to what its kernels are launched with.
#pragma once

#include <cstddef>
#include <span>

#include "backends/cuda/kernels/params.h"
#include "onepass/attention.h"
#include "problem/attention_problem.h"

namespace onepass::cuda {

TensorParams tensor_params(const TensorView& view, const TensorStrides& strides);

/// What the arguments and the problem say: neither error_flag nor what a plan adds. score_terms: scores come
/// to the exponent in natural units.
ForwardParams call_params(const AttentionProblem& problem, const ForwardArguments& args, bool score_terms);

/// Everything but error_flag. Pointers are copied, never followed.
ForwardParams forward_params(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace);

/// Of a mixed plan (mixed_plan.h): what writes the lengths of its parts, and what parts[part] is called with.
PartLengthsParams part_lengths_params(const Plan& plan, const ForwardArguments& args,
                                      std::span<std::byte> workspace);
ForwardArguments part_arguments(const Plan& plan, std::size_t part, const ForwardArguments& args,
                                std::span<std::byte> workspace);

}  // namespace onepass::cuda
