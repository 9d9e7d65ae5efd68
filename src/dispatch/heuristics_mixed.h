// Whether a packed batch holds two kinds of sequences: some of many query rows (parts of prompts), some of
// few (decoding). One kernel for both wastes most of its rows on the latter; then each kind has a launch.
#pragma once

#include <vector>

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

/// Query rows of a sequence that count as few on a GPU: the most that its decode kernel takes, packed with
/// their group, or a tile of sm80_forward. Of a batch-invariant call neither the batch nor lengths change it.
std::int64_t most_few_rows(const AttentionProblem& problem, const DeviceInfo& device);

/// Most query rows of a sequence in each launch, falling; empty for a batch that one launch serves. With
/// {512, 12, 4} a sequence of 13 to 512 rows is the first launch's, one of 5 to 12 the second's, others the
/// third's. Sequences of few rows have a launch of their own where all their rows fit one tile: next to tiles
/// that only the longest of them has, blocks would be idle. Only shapes and bounds are known here, not
/// lengths: a wrong guess costs an idle launch, or takes a sequence of few rows to the kernel of prompts. A
/// batch-invariant call decides for each sequence, so packed queries have two launches wherever one may have
/// many rows.
std::vector<std::int64_t> choose_launch_rows(const AttentionProblem& problem, const DeviceInfo& device);

}  // namespace onepass
