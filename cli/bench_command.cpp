// onepass bench: the time of cases, in turns between backends, against what the machine can give.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/case_list.h"
#include "cli/check_report.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/input_sets.h"
#include "cli/machine_peaks.h"
#include "cli/progress.h"
#include "cli/text_output.h"
#include "cli/timing.h"
#include "plan/explain.h"
#include "verify/case_tensors.h"
#include "verify/check.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass bench";

struct BenchResult {
  std::string case_text;
  Backend backend = Backend::Cpu;
  std::optional<verify::CheckReport> check;
  std::optional<TimingSummary> timing;  // absent when the check failed
  std::string implementation;
  int num_threads = 1, num_splits = 1;
  DType dtype = DType::F32;
  Work work;
  std::size_t num_input_sets = 1;

  bool passed() const { return !check || check->passed; }
  double flops_per_second() const { return work.flops / timing->median; }
  double bytes_per_second() const { return work.bytes / timing->median; }
};

ExecutionOptions execution_on(const BenchOptions& o, Backend backend) {
  ExecutionOptions execution = o.execution;
  execution.backend = backend;
  return execution;
}

/// Checks and times one case on every backend. All read the same tensors and write the same outputs.
std::vector<BenchResult> bench_case(const NamedCase& named, const BenchOptions& o,
                                    const std::function<void(const std::string&)>& show) {
  const verify::CaseTensors tensors = verify::make_tensors(named.values);
  std::vector<CpuExecution> executions;
  std::vector<BenchResult> results;
  for (const Backend backend : o.backends.list) {
    const ForwardOptions options = with_execution(tensors.options, execution_on(o, backend));
    executions.emplace_back(kCall, tensors.args, options);
    const Plan& plan = executions.back().plan();
    BenchResult result;
    result.case_text = named.text;
    result.backend = backend;
    result.implementation = plan.implementation;
    result.num_threads = plan.num_threads;
    result.num_splits = plan.num_splits;
    result.dtype = plan.problem->q_dtype;
    result.work = exact_work(plan, tensors.args);
    show(fmt::format("{} on {}", named.text, backend_name(backend)));
    executions.back().run();  // what the check reads, and the warm-up
    if (o.check) {
      result.check = verify::check_result(tensors.args, options, [&](double share) {
        show(fmt::format("{} on {} against float64: {:.0f} %", named.text, backend_name(backend),
                         100 * share));
      });
    }
    results.push_back(std::move(result));
  }

  const Accounting& accounting = executions.front().plan().accounting;
  const InputSets sets(tensors, accounting.seconds_memory > accounting.seconds_compute, this_cpu());
  std::vector<std::function<double()>> contestants;
  std::vector<BenchResult*> timed;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].passed()) continue;
    contestants.emplace_back([&, i, next = std::size_t{0}]() mutable {
      next = (next + 1) % sets.size();
      return executions[i].run(sets[next]);
    });
    timed.push_back(&results[i]);
  }
  const auto timings = time_in_turns(contestants, {o.repeat, o.min_seconds}, [&](int num_runs) {
    show(fmt::format("{}: {} runs timed", named.text, num_runs));
  });
  for (std::size_t i = 0; i < timed.size(); ++i) {
    timed[i]->timing = timings[i];
    timed[i]->num_input_sets = sets.size();
  }
  return results;
}

// --- text ------------------------------------------------------------------------------------------------

constexpr const char* kRow = "{:<{}}  {:<9}  {:>10}  {:>6}  {:>5}  {:>14}  {:>6}  {:>11}  {:>6}\n";

/// Processes that wanted a core in the last minute; nothing when the system does not say.
std::optional<double> load_average() {
  double load = 0;
  if (getloadavg(&load, 1) != 1) return std::nullopt;
  return load;
}

std::string busy_text(const std::optional<double>& load) {
  if (!load || *load < 0.5) return {};
  return labelled(
      "", fmt::format("not quiet: {:.1f} processes on average in the last minute; times are upper bounds",
                      *load));
}

std::string machine_text(const MachinePeaks& peaks) {
  return labelled("machine", fmt::format("{}, {} thread{}", this_cpu().name, peaks.num_threads,
                                         peaks.num_threads == 1 ? "" : "s")) +
         labelled("measured peaks",
                  fmt::format("f32 and f16 {} ({}), bf16 {} ({})",
                              decimal_text(peaks.f32_flops_per_second, "FLOP/s"), peaks.f32_unit,
                              decimal_text(peaks.bf16_flops_per_second, "FLOP/s"), peaks.bf16_unit)) +
         labelled(
             "", fmt::format("reads {} from a buffer of {}", decimal_text(peaks.read_bytes_per_second, "B/s"),
                             bytes_text(peaks.buffer_bytes)));
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string header_text(std::size_t width) {
  return fmt::format(fmt::runtime(kRow), "case", width, "backend", "median", "spread", "runs", "speed",
                     "peak", "traffic", "reads");
}

std::string row_text(const BenchResult& r, const MachinePeaks& peaks, std::size_t width) {
  if (!r.timing) {
    return fmt::format("{:<{}}  {:<9}  FAILED, not timed: {}\n", r.case_text, width, backend_name(r.backend),
                       r.check->failure);
  }
  return fmt::format(
      fmt::runtime(kRow), r.case_text, width, backend_name(r.backend), seconds_text(r.timing->median),
      percent(r.timing->spread()), r.timing->num_runs, decimal_text(r.flops_per_second(), "FLOP/s"),
      percent(r.flops_per_second() / peaks.flops_per_second(r.dtype)),
      decimal_text(r.bytes_per_second(), "B/s"), percent(r.bytes_per_second() / peaks.read_bytes_per_second));
}

constexpr const char* kLegend =
    "spread: half the distance of the quartiles; peak, reads: share of the measured peaks above;\n"
    "traffic: every tensor once; calls bound by memory use copies of the inputs in turn, too many for the "
    "caches\n";

// --- JSON ------------------------------------------------------------------------------------------------

Json machine_to_json(const MachinePeaks& peaks, const std::optional<double>& load) {
  return {{"cpu", device_to_json(this_cpu())},
          {"num_threads", peaks.num_threads},
          {"f32_flops_per_second", peaks.f32_flops_per_second},
          {"f32_unit", peaks.f32_unit},
          {"bf16_flops_per_second", peaks.bf16_flops_per_second},
          {"bf16_unit", peaks.bf16_unit},
          {"read_bytes_per_second", peaks.read_bytes_per_second},
          {"read_buffer_bytes", peaks.buffer_bytes},
          {"load_average", load ? Json(*load) : Json(nullptr)}};
}

Json result_to_json(const BenchResult& r, const MachinePeaks& peaks) {
  Json json = {{"case", r.case_text},
               {"backend", backend_name(r.backend)},
               {"implementation", r.implementation},
               {"num_threads", r.num_threads},
               {"num_splits", r.num_splits},
               {"flops", r.work.flops},
               {"bytes", r.work.bytes},
               {"check", r.check ? to_json(*r.check) : Json(nullptr)}};
  if (r.timing) {
    const TimingSummary& t = *r.timing;
    json["runs"] = t.num_runs;
    json["input_sets"] = r.num_input_sets;
    json["seconds"] = to_json(t);
    json["flops_per_second"] = r.flops_per_second();
    json["share_of_peak"] = r.flops_per_second() / peaks.flops_per_second(r.dtype);
    json["bytes_per_second"] = r.bytes_per_second();
    json["share_of_reads"] = r.bytes_per_second() / peaks.read_bytes_per_second;
  }
  return json;
}

}  // namespace

ExitStatus bench_command(const CommandLine& line) {
  const BenchOptions& o = line.bench;
  if (o.backends.list.front() == Backend::Cuda) return gpu_bench_command(line);
  const std::vector<NamedCase> cases = collect_cases(kCall, o.cases);
  require_forward(kCall, cases);
  use_instruction_set(o.execution.instruction_set);
  std::size_t width = 4;
  for (const NamedCase& named : cases) {
    for (const Backend backend : o.backends.list) check_runnable(kCall, named, execution_on(o, backend));
    width = std::max(width, named.text.size());
  }

  Progress progress(line.progress || stderr_is_terminal());
  const auto num_cases = static_cast<std::int64_t>(cases.size());
  progress.show(0, num_cases, "measuring what the machine can give");
  const std::optional<double> load = load_average();
  const MachinePeaks peaks =
      measure_peaks(o.execution.num_threads > 0 ? o.execution.num_threads : this_cpu().num_processors);
  progress.clear();
  if (!line.json) print_text(machine_text(peaks) + busy_text(load) + "\n" + header_text(width));

  bool all_passed = true;
  Json json_results = Json::array();
  for (std::int64_t i = 0; i < num_cases; ++i) {
    const auto results = bench_case(cases[static_cast<std::size_t>(i)], o,
                                    [&](const std::string& what) { progress.show(i, num_cases, what); });
    progress.clear();
    for (const BenchResult& result : results) {
      all_passed = all_passed && result.passed();
      if (line.json) {
        json_results.push_back(result_to_json(result, peaks));
      } else {
        print_text(row_text(result, peaks, width));
      }
    }
  }
  if (line.json) {
    print_json({{"version", version()},
                {"machine", machine_to_json(peaks, load)},
                {"results", std::move(json_results)}});
  } else {
    print_text(std::string("\n") + kLegend);
  }
  return all_passed ? ExitStatus::Done : ExitStatus::CheckFailed;
}

}  // namespace onepass::cli
