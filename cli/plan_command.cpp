// onepass plan: what a case would do on a device, and what it costs at least.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/execution.h"
#include "cli/json_output.h"
#include "cli/text_output.h"
#include "dispatch/accounting.h"
#include "dispatch/implementations.h"
#include "plan/explain.h"
#include "plan/make_plan.h"
#include "support/message.h"
#include "verify/case_tensors.h"
#include "verify/gradient_tensors.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass plan";

// Query rows of one tile where no implementation names its own: usual in GPU kernels of this kind. It enters
// the bytes that one pass moves, not the lower bound.
constexpr std::int64_t kAssumedTileM = 128;

/// The planner's answer for one device: a plan, or everybody's reason. Both are answers.
struct Answer {
  DeviceInfo device;
  std::optional<Plan> plan;
  std::vector<Decline> declines;
  Accounting accounting;
};

Answer ask(const AttentionProblem& problem, const PlanRequest& request, const DeviceInfo& device) {
  Answer answer;
  answer.device = device;
  for (const Implementation& implementation : implementations_of(problem)) {
    if (const auto reason = implementation.decline(problem, device, request)) {
      answer.declines.push_back({implementation.name, *reason});
      continue;
    }
    answer.plan = make_plan(kCall, problem, request, device);
    answer.accounting = answer.plan->accounting;
    return answer;
  }
  answer.accounting = account(problem, device, kAssumedTileM, problem.group());
  return answer;
}

std::vector<DeviceInfo> chosen_devices(const std::string& name) {
  if (name != "all") return {device_by_name(kCall, name, "all")};
  std::vector<DeviceInfo> devices = {this_cpu()};
  for (const std::string& known : known_devices()) devices.push_back(*find_device(known));
  return devices;
}

std::string explain(const AttentionProblem& problem, const Answer& answer) {
  if (answer.plan) return answer.plan->explain();
  std::string text = explain_accounting(problem, answer.device, answer.accounting);
  text += labelled("", fmt::format("(one pass with tiles of {} query rows)", kAssumedTileM));
  text += labelled("implementation", "none in this version; the numbers above are the hardware's bound");
  for (const Decline& decline : answer.declines) {
    text += labelled("  declined", decline.implementation + ": " + decline.reason);
  }
  return text;
}

std::string compare(const AttentionProblem& problem, const std::vector<Answer>& answers) {
  Table table({"device", "compute", "memory", "at least", "bound by", "ridge", "implementation"});
  for (const Answer& answer : answers) {
    const Accounting& a = answer.accounting;
    table.add({answer.device.kind == DeviceInfo::Kind::Cpu ? kThisCpu : answer.device.name,
               seconds_text(a.seconds_compute), seconds_text(a.seconds_memory),
               seconds_text(a.seconds_lower_bound),
               a.seconds_compute >= a.seconds_memory ? "compute" : "memory", fmt::format("{:.1f}", a.ridge),
               answer.plan ? answer.plan->implementation : "none"});
  }
  const Accounting& a = answers.front().accounting;
  return labelled("problem", to_string(problem)) +
         labelled("work",
                  fmt::format("{}{}, at least {}: {:.1f} FLOP/byte", is_ragged(problem) ? "at most " : "",
                              decimal_text(a.flops, "FLOP"), bytes_text(a.bytes_lower_bound),
                              a.bytes_lower_bound > 0 ? a.flops / a.bytes_lower_bound : 0.0)) +
         labelled("", "(ridge: FLOP/byte below which memory is the limit; peaks of this CPU are estimated)") +
         "\n" + table.text();
}

Json answer_to_json(const Answer& answer) {
  Json json = {{"device", device_to_json(answer.device)}};
  if (answer.plan) {
    json["plan"] = plan_to_json(*answer.plan);
  } else {
    json["plan"] = nullptr;
    json["declines"] = declines_to_json(answer.declines);
    json["assumed_tile_m"] = kAssumedTileM;
  }
  json["accounting"] = accounting_to_json(answer.accounting);
  return json;
}

}  // namespace

ExitStatus plan_command(const CommandLine& line) {
  const PlanOptions& o = line.plan;
  if (o.case_text.empty()) {
    throw_invalid(kCall, "no case is given", "one case text", fmt::format("try {} {}", kCall, kCaseExample));
  }
  const std::vector<DeviceInfo> devices = chosen_devices(o.device);
  const Case values = parse_case(o.case_text);
  const ForwardOptions options = with_execution(verify::case_shapes(values).options, o.execution);
  const AttentionProblem problem = verify::problem_of_case(kCall, values, options);
  const PlanRequest request = {options.backend, options.num_threads, options.num_splits};
  std::vector<Answer> answers;
  answers.reserve(devices.size());
  for (const DeviceInfo& device : devices) answers.push_back(ask(problem, request, device));

  if (line.json) {
    Json list = Json::array();
    for (const Answer& answer : answers) list.push_back(answer_to_json(answer));
    Json document = {{"case", to_string(values)}, {"problem", problem_to_json(problem)}};
    if (o.device == "all") {
      document["devices"] = std::move(list);
    } else {
      document.update(list.front());
    }
    print_json(document);
  } else {
    print_text(answers.size() == 1 ? explain(problem, answers.front()) : compare(problem, answers));
  }
  return ExitStatus::Done;
}

}  // namespace onepass::cli
