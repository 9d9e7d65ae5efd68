// Every rule about arguments, in one place. Nothing past this point re-checks a caller's input.
#pragma once

#include "problem/attention_problem.h"

namespace onepass {

inline constexpr int kMaxSplits = 1024;

/// Strides of a [batch, row, head, dim] or packed [row, head, dim] tensor.
TensorStrides strides_of(const TensorView& t);

/// Checks args and options and returns the problem they describe. `call` names the function in messages.
/// Data pointers are not looked at, except that missing length bounds are read from index tensors
/// in host memory.
/// @throws InvalidArgument.
AttentionProblem validate_problem(const char* call, const ForwardArguments& args,
                                  const ForwardOptions& options);

/// Checks what a run needs beyond validate_problem: args still describe `problem`, data pointers present
/// and aligned, every index value in host memory inside its bounds, outputs not overlapping themselves.
/// @throws InvalidArgument.
void validate_run(const char* call, const AttentionProblem& problem, const ForwardArguments& args);

/// Whether the tensors of both are the same but for their data: validate_problem makes the same problem of
/// both, if its options give the bounds of lengths.
bool same_but_data(const ForwardArguments& a, const ForwardArguments& b);

/// The part of validate_run that is about data: for args that validate_problem has just made `problem` of.
/// @throws InvalidArgument.
void validate_data(const char* call, const AttentionProblem& problem, const ForwardArguments& args);

/// Of a backward call: the rules of its forward call, and of the tensors beside it.
/// @throws InvalidArgument, and NotSupported for pages, 8-bit keys and descale factors.
AttentionProblem validate_problem(const char* call, const BackwardArguments& args,
                                  const ForwardOptions& options);
/// @throws InvalidArgument.
void validate_run(const char* call, const AttentionProblem& problem, const BackwardArguments& args);
void validate_data(const char* call, const AttentionProblem& problem, const BackwardArguments& args);

/// What runs of both kinds check. Addresses and index values of the tensors of a forward call:
void validate_forward_data(const char* call, const AttentionProblem& problem, const ForwardArguments& args);
/// The arguments of a run, which make up `given`, are those that the plan is for.
void validate_same(const char* call, const AttentionProblem& problem, const AttentionProblem& given);
/// Options under which validate_problem gives `problem` back.
ForwardOptions options_of(const AttentionProblem& problem);

/// The same for a merge: tensors, addresses and the number of CPU threads.
/// @throws InvalidArgument.
void validate_merge(const char* call, const MergeArguments& args, int num_threads);

}  // namespace onepass
