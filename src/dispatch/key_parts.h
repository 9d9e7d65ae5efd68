// Which sequences of a batch-invariant call have their keys cut into parts, and how many.
//
// Few query rows leave a processor idle unless their keys are shared out; many do not, and their partial
// results would fill memory. The limit is a number of query rows, so each sequence decides for itself.
#pragma once

#include <cstdint>

#include "problem/attention_problem.h"

namespace onepass {

/// Query rows of a sequence up to which its keys are cut into parts (kernels/common/key_parts.h): as many as
/// fill a tile of 64 with their group, one at least. GPUs may have less (heuristics_mixed.h).
std::int64_t most_rows_of_parts(const AttentionProblem& problem);

/// Rows of partial results for each part: of split calls, those of q; of batch-invariant ones, those of few
/// rows, each sequence with the same room.
std::int64_t num_split_rows(const AttentionProblem& problem);

}  // namespace onepass
