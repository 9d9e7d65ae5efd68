// Who can run a problem: an ordered list, asked from the top; each entry accepts or says why not.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "onepass/plan.h"
#include "plan/make_plan.h"
#include "problem/attention_problem.h"

namespace onepass {

struct Implementation {
  const char* name;
  /// Why it does not take the problem on this device as requested; empty when it does.
  std::optional<std::string> (*decline)(const AttentionProblem& problem, const DeviceInfo& device,
                                        const PlanRequest& request);
  /// Fills steps, tiles, splits, threads and workspace of a plan that has problem and device. Null for an
  /// entry that declines everything.
  void (*lay_out)(Plan& plan, const PlanRequest& request);
};

/// Of forward calls, fastest first.
std::span<const Implementation> implementations();
/// Of backward calls, likewise.
std::span<const Implementation> backward_implementations();
/// Of calls like this one.
std::span<const Implementation> implementations_of(const AttentionProblem& problem);

}  // namespace onepass
