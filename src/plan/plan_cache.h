// The plans of the last calls, so that a call like one of them need not plan again.
#pragma once

#include <memory>

#include "plan/make_plan.h"

namespace onepass {

inline constexpr std::size_t kKeptPlans =
    64;  // a model has a few shapes; a decoding one without bounds, many

/// make_plan, or what it gave for the same problem, request and device: the plan of a call is a function of
/// these. The kKeptPlans used last are kept, for all threads.
/// @throws NotSupported, which is not kept.
std::shared_ptr<const Plan> kept_plan(const char* call, const AttentionProblem& problem,
                                      const PlanRequest& request, const DeviceInfo& device, int device_idx);

}  // namespace onepass
