// Merging two partial results (spec section 3).
#pragma once

#include "onepass/attention.h"

namespace onepass::cpu {

/// Arguments are checked already.
void merge(const MergeArguments& args, int num_threads);

}  // namespace onepass::cpu
