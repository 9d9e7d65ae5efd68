// Whether a packed batch holds two kinds of sequences: some of many query rows (parts of prompts), some of
// few (decoding). One kernel for both wastes most of its rows on the latter; then there are two launches.
#pragma once

#include <optional>

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

/// Query rows of a sequence that count as few on a GPU: the most that its decode kernel takes, packed with
/// their group, or a tile of sm80_forward. Of a batch-invariant call neither the batch nor lengths change it.
std::int64_t most_few_rows(const AttentionProblem& problem, const DeviceInfo& device);

/// Query rows up to which a sequence counts as one of few rows; empty for a batch that one launch serves.
/// Only shapes and bounds are known here, not lengths: a wrong guess costs an idle launch. A batch-invariant
/// call decides for each sequence, so packed queries have two launches wherever one may have many rows.
std::optional<std::int64_t> choose_few_rows(const AttentionProblem& problem, const DeviceInfo& device);

}  // namespace onepass
