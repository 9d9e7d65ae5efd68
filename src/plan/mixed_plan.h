// A packed batch of prefill and decode as one plan of two launches.
#pragma once

#include "plan/make_plan.h"

namespace onepass {

inline constexpr const char* kMixedForward = "mixed_forward";
inline constexpr const char* kPieceManyRows =
    "seqlens_many";  // i32 [B]: query rows of each, 0 for the other launch
inline constexpr const char* kPieceFewRows = "seqlens_few";

/// Of a mixed plan: fills rows of no sequence and writes both lists of lengths (its steps), then runs
/// parts[0] over the sequences of more than `few_rows` query rows and parts[1] over the others.
Plan make_mixed_plan(const char* call, const AttentionProblem& problem, const PlanRequest& request,
                     const DeviceInfo& device, std::int64_t few_rows);

}  // namespace onepass
