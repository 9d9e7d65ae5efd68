// The planner's numbers as text for people.
#pragma once

#include <string>

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

/// Problem, device, FLOPs, bytes, intensity, ridge and lower bound in time, as aligned lines.
/// For devices that no implementation serves too; `accounting` is what account_forward gives.
std::string explain_accounting(const AttentionProblem& problem, const DeviceInfo& device,
                               const Accounting& accounting);

/// "132.0 MiB", "512 B".
std::string bytes_text(double bytes);
/// "8.59 G" of a unit with decimal prefixes: "8.59 GFLOP" for unit "FLOP".
std::string decimal_text(double value, const char* unit);
/// "1.23 ms".
std::string seconds_text(double seconds);

}  // namespace onepass
