// Whether a packed batch holds two kinds of sequences: some of many query rows (parts of prompts), some of
// few (decoding). One kernel for both wastes most of its rows on the latter; then there are two launches.
#pragma once

#include <optional>

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

/// Query rows up to which a sequence counts as one of few rows; empty for a batch that one launch serves.
/// Only shapes and bounds are known here, not lengths: a wrong guess costs an idle launch.
std::optional<std::int64_t> choose_few_rows(const AttentionProblem& problem, const DeviceInfo& device);

}  // namespace onepass
