// onepass check: cases against a float64 evaluation of the formula.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "cli/case_list.h"
#include "cli/check_report.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/progress.h"
#include "cli/text_output.h"
#include "verify/check.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass check";

void print_line(const NamedCase& named, std::size_t width, const verify::CheckReport& report) {
  std::string text =
      fmt::format("{}  {:<{}}  {}\n", report.passed ? "ok  " : "FAIL", named.text, width, summary(report));
  if (!report.passed) text += fmt::format("      repeat with: {}\n", report.repeat);
  print_text(text);
}

}  // namespace

ExitStatus check_command(const CommandLine& line) {
  const ExecutionOptions& execution = line.check.execution;
  std::vector<NamedCase> cases = collect_cases(kCall, line.check.cases);
  use_instruction_set(execution.instruction_set);
  std::size_t width = 0;
  for (NamedCase& named : cases) {
    check_runnable(kCall, named, execution);
    if (execution.num_splits > 0) named.values.num_splits = execution.num_splits;
    named.text = to_string(named.values);
    width = std::max(width, named.text.size());
  }

  const auto begin = std::chrono::steady_clock::now();
  const auto num_cases = static_cast<std::int64_t>(cases.size());
  std::int64_t num_done = 0, num_failed = 0;
  Json results = Json::array();
  Progress progress(line.progress || stderr_is_terminal());
  for (const NamedCase& named : cases) {
    progress.show(num_done, num_cases, named.text);
    const verify::CheckReport report = verify::check_case(
        named.values, {execution.backend, execution.num_threads, execution.instruction_set},
        [&](double share) {
          progress.show(num_done, num_cases, fmt::format("{} in float64: {:.0f} %", named.text, 100 * share));
        });
    ++num_done;
    num_failed += report.passed ? 0 : 1;
    progress.clear();
    if (line.json) {
      Json result = {{"case", named.text}};
      result.update(to_json(report));
      results.push_back(std::move(result));
    } else {
      print_line(named, width, report);
    }
  }

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (line.json) {
    print_json({{"cases", num_cases},
                {"failed", num_failed},
                {"seconds", seconds},
                {"results", std::move(results)}});
  } else {
    print_text(fmt::format("{} of {} passed in {:.1f} s\n", num_cases - num_failed, num_cases, seconds));
  }
  return num_failed == 0 ? ExitStatus::Done : ExitStatus::CheckFailed;
}

}  // namespace onepass::cli
