// A packed batch of prefill and decode as one plan, of a launch for each kind of sequences.
#pragma once

#include <span>

#include "plan/make_plan.h"

namespace onepass {

inline constexpr const char* kMixedForward = "mixed_forward";
inline constexpr const char* kPiecePartLengths =
    "part_seqlens";  // i32 [parts, B]: query rows of each sequence, 0 where it is another launch's

/// Of a mixed plan: fills rows of no sequence and writes the lists of lengths (its steps), then runs each of
/// its parts over the sequences of up to launch_rows[part] query rows and more than the next part's.
Plan make_mixed_plan(const char* call, const AttentionProblem& problem, const PlanRequest& request,
                     const DeviceInfo& device, std::span<const std::int64_t> launch_rows);

}  // namespace onepass
