// Writing new keys and values into a cache.
#pragma once

#include "problem/append_problem.h"

namespace onepass::cpu {

/// Arguments are checked already, index values included.
void append_kv(const AppendArguments& args, const AppendProblem& problem, const AppendOptions& options,
               int num_threads);

}  // namespace onepass::cpu
