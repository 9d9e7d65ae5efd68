// Values of the library as JSON, keys in the order in which a reader wants them.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/failure.h"
#include "cli/timing.h"
#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass::cli {

using Json = nlohmann::ordered_json;

Json problem_to_json(const AttentionProblem& problem);
Json device_to_json(const DeviceInfo& device);
Json accounting_to_json(const Accounting& accounting);
Json declines_to_json(const std::vector<Decline>& declines);
Json plan_to_json(const Plan& plan);
Json to_json(const TimingSummary& timing);
Json failure_to_json(const Failure& failure);

/// A number, or "inf", "-inf", "nan", which JSON has no numbers for.
Json number_to_json(double value);

/// The only writer to stdout in JSON mode; called once. @throws EnvironmentError when that fails.
void print_json(const Json& document);

}  // namespace onepass::cli
