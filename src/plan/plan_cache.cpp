#include "plan/plan_cache.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace onepass {
namespace {

struct KeptPlan {
  PlanRequest request;
  int device_idx;  // a plan knows the kernels of the device that it ran on last
  std::shared_ptr<const Plan> plan;
};

}  // namespace

std::shared_ptr<const Plan> kept_plan(const char* call, const AttentionProblem& problem,
                                      const PlanRequest& request, const DeviceInfo& device, int device_idx) {
  static std::mutex mutex;
  static std::vector<KeptPlan> kept;  // last used first
  {
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(kept.begin(), kept.end(), [&](const KeptPlan& k) {
      return *k.plan->problem == problem && k.request == request && k.device_idx == device_idx &&
             k.plan->device == device;
    });
    if (found != kept.end()) {
      std::rotate(kept.begin(), found, found + 1);
      return kept.front().plan;
    }
  }
  auto plan = std::make_shared<const Plan>(make_plan(call, problem, request, device));  // outside the lock
  const std::lock_guard lock(mutex);
  if (kept.size() == kKeptPlans) kept.pop_back();
  kept.insert(kept.begin(), {request, device_idx, plan});
  return plan;
}

}  // namespace onepass
