// Every rule about arguments, in one place. Nothing past this point re-checks a caller's input.
#pragma once

#include "problem/attention_problem.h"

namespace onepass {

inline constexpr int kMaxThreads = 4096;
inline constexpr int kMaxSplits = 1024;

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

/// The part of validate_run that is about data: for args that validate_problem has just made `problem` of.
/// @throws InvalidArgument.
void validate_data(const char* call, const AttentionProblem& problem, const ForwardArguments& args);

/// The same for a merge: tensors, addresses and the number of CPU threads.
/// @throws InvalidArgument.
void validate_merge(const char* call, const MergeArguments& args, int num_threads);

}  // namespace onepass
