#include "plan/make_plan.h"

#include <fmt/format.h>

#include <vector>

#include "dispatch/accounting.h"
#include "dispatch/heuristics_mixed.h"
#include "dispatch/implementations.h"
#include "plan/mixed_plan.h"
#include "support/message.h"

namespace onepass {
namespace {

[[noreturn]] void throw_not_supported(const char* call, const Plan& plan) {
  std::string reasons;
  for (const Decline& decline : plan.declines) {
    reasons += fmt::format("{}{} declines ({})", reasons.empty() ? "" : ", ", decline.implementation,
                           decline.reason);
  }
  throw NotSupported(format_message(
      call, fmt::format("no implementation on {} takes {}", plan.device.name, to_string(*plan.problem)),
      "what one of these takes: " + reasons,
      "compute this on a CPU: tensors in host memory, backend 'auto'"));
}

}  // namespace

Plan make_plan(const char* call, const AttentionProblem& problem, const PlanRequest& request,
               const DeviceInfo& device) {
  const bool free =
      request.num_splits == 0 && (request.backend == Backend::Auto || request.backend == Backend::Cuda);
  const auto launch_rows = free ? choose_launch_rows(problem, device) : std::vector<std::int64_t>{};
  return launch_rows.empty() ? make_plan_of_one_launch(call, problem, request, device)
                             : make_mixed_plan(call, problem, request, device, launch_rows);
}

Plan make_plan_of_one_launch(const char* call, const AttentionProblem& problem, const PlanRequest& request,
                             const DeviceInfo& device) {
  Plan plan;
  plan.device = device;
  plan.problem = std::make_shared<const AttentionProblem>(problem);
  for (const Implementation& implementation : implementations_of(problem)) {
    if (auto reason = implementation.decline(problem, device, request)) {
      plan.declines.push_back({implementation.name, *std::move(reason)});
      continue;
    }
    plan.implementation = implementation.name;
    implementation.lay_out(plan, request);
    plan.accounting = account(problem, device, plan.tile_m, plan.tile_heads);
    return plan;
  }
  throw_not_supported(call, plan);
}

}  // namespace onepass
