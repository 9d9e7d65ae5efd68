// onepass bench --backends cuda[,naive]: the time of cases on a GPU, by its own clock.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/case_list.h"
#include "cli/check_report.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/gpu_timer.h"
#include "cli/input_sets.h"
#include "cli/json_output.h"
#include "cli/progress.h"
#include "cli/text_output.h"
#include "cli/timing.h"
#include "plan/explain.h"
#include "problem/validate.h"
#include "verify/case_tensors.h"
#include "verify/check.h"
#include "verify/gpu_call.h"
#include "verify/naive_gpu.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass bench";

// A GPU at full load reaches its power limit within tens of milliseconds and slows down: bursts this long,
// and pauses this long between them, stay below it.
constexpr double kBurstSeconds = 8e-3;
constexpr std::chrono::milliseconds kPause{60};
constexpr int kBursts = 15;
constexpr double kMostRunsPerBurst = 5000;

struct GpuResult {
  std::string case_text, backend, implementation;
  int num_splits = 1, runs_per_burst = 1;
  std::size_t memory_bytes = 0;  // beside inputs and outputs
  std::optional<verify::CheckReport> check;
  std::optional<TimingSummary> timing;  // absent when the check failed
  DType dtype = DType::BF16;
  Work work;
  std::size_t num_input_sets = 1;

  bool passed() const { return !check || check->passed; }
  double flops_per_second() const { return work.flops / timing->median; }
  double bytes_per_second() const { return work.bytes / timing->median; }
};

/// Queues one run on the i-th copy of the tensors.
using QueueRun = std::function<void(std::size_t)>;

/// One turn: as many runs as fill a burst, then a pause. Returns the seconds of a run.
class Burst {
 public:
  Burst(const GpuTimer& timer, QueueRun queue, std::size_t num_sets)
      : timer_(timer), queue_(std::move(queue)), num_sets_(num_sets) {
    const double once = measure(1);
    num_runs_ = static_cast<int>(std::clamp(std::round(kBurstSeconds / once), 1.0, kMostRunsPerBurst));
  }
  int num_runs() const { return num_runs_; }
  double operator()() {
    std::this_thread::sleep_for(kPause);
    return measure(num_runs_);
  }

 private:
  double measure(int num_runs) {
    const double seconds = timer_.seconds([&] {
      for (int n = 0; n < num_runs; ++n) queue_(next_++ % num_sets_);
    });
    return seconds / num_runs;
  }

  const GpuTimer& timer_;
  QueueRun queue_;
  std::size_t num_sets_, next_ = 0;
  int num_runs_ = 1;
};

/// A case on the GPU: copies of its tensors, and everybody who computes it.
class GpuBench {
 public:
  GpuBench(const NamedCase& named, const BenchOptions& o)
      : named_(named), options_(o), tensors_(verify::make_tensors(named.values)) {
    call_options_ = with_execution(tensors_.options, o.execution);
    sets_.emplace_back(kCall, tensors_.args, call_options_);
    const Accounting& accounting = plan().accounting;
    const bool memory_bound = accounting.seconds_memory > accounting.seconds_compute;
    const std::size_t count = memory_bound ? count_input_sets(tensors_, plan().device) : 1;
    while (sets_.size() < count) sets_.emplace_back(kCall, tensors_.args, call_options_);
  }

  std::vector<GpuResult> results(const std::function<void(const std::string&)>& show) {
    std::optional<verify::NaiveGpuCall> naive;
    if (options_.backends.naive) naive.emplace(kCall, plan());
    std::vector<GpuResult> results;
    std::vector<QueueRun> queues;
    results.push_back(first_result("cuda", plan().workspace_bytes()));
    queues.emplace_back([this](std::size_t i) { sets_[i].run(); });
    if (naive) {
      results.push_back(first_result("naive", naive->memory_bytes()));
      queues.emplace_back([this, &naive](std::size_t i) { naive->run(sets_[i].args()); });
    }
    for (std::size_t i = 0; i < results.size(); ++i) check(results[i], queues[i], show);
    time(results, queues, show);
    return results;
  }

 private:
  const Plan& plan() const { return sets_.front().plan(); }

  GpuResult first_result(const char* backend, std::size_t memory_bytes) const {
    const bool naive = std::string(backend) == "naive";
    GpuResult result;
    result.case_text = named_.text;
    result.backend = backend;
    result.implementation = naive ? "naive" : plan().implementation;
    result.num_splits = naive ? 1 : plan().num_splits;
    result.memory_bytes = memory_bytes;
    result.dtype = plan().problem->q_dtype;
    result.work = exact_work(plan(), tensors_.args);
    result.num_input_sets = sets_.size();
    return result;
  }

  /// Runs into poisoned outputs, which also warms up, and holds them to float64.
  void check(GpuResult& result, const QueueRun& queue, const std::function<void(const std::string&)>& show) {
    show(fmt::format("{} on {}", named_.text, result.backend));
    tensors_.poison_outputs();
    sets_.front().upload();
    queue(0);
    const std::optional<std::string> damage = sets_.front().copy_back();
    if (!options_.check) return;
    ForwardArguments written = tensors_.args;
    if (result.backend == "naive") written.softmax_lse = {};  // it computes none
    result.check = verify::check_result(written, call_options_, [&](double share) {
      show(fmt::format("{} on {} against float64: {:.0f} %", named_.text, result.backend, 100 * share));
    });
    if (damage) {
      result.check->passed = false;
      result.check->failure = *damage;
    }
  }

  void time(std::vector<GpuResult>& results, const std::vector<QueueRun>& queues,
            const std::function<void(const std::string&)>& show) {
    const GpuTimer timer(0);
    std::vector<std::function<double()>> contestants;
    std::vector<GpuResult*> timed;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].passed()) continue;
      Burst burst(timer, queues[i], sets_.size());
      results[i].runs_per_burst = burst.num_runs();
      contestants.emplace_back(std::move(burst));
      timed.push_back(&results[i]);
    }
    const TimingRule rule{options_.repeat > 0 ? options_.repeat : kBursts, 0};
    const auto timings = time_in_turns(contestants, rule, [&](int num_bursts) {
      show(fmt::format("{}: {} bursts timed", named_.text, num_bursts));
    });
    for (std::size_t i = 0; i < timed.size(); ++i) timed[i]->timing = timings[i];
  }

  const NamedCase& named_;
  const BenchOptions& options_;
  verify::CaseTensors tensors_;
  ForwardOptions call_options_;
  std::vector<verify::GpuCall> sets_;
};

/// Everything that can be refused is refused before anything is computed.
void check_all(const std::vector<NamedCase>& cases, const BenchOptions& o) {
  ExecutionOptions execution = o.execution;
  execution.backend = Backend::Cuda;
  for (const NamedCase& named : cases) {
    check_runnable(kCall, named, execution);
    if (!o.backends.naive) continue;
    const std::string about = fmt::format("{}: {}", kCall, named.text);
    const verify::CaseShapes shapes = verify::case_shapes(named.values);
    verify::NaiveGpuCall::require_support(about.c_str(),
                                          validate_problem(about.c_str(), shapes.args, shapes.options));
  }
}

// --- text ------------------------------------------------------------------------------------------------

constexpr const char* kRow = "{:<{}}  {:<7}  {:>10}  {:>6}  {:>6}  {:>14}  {:>6}  {:>11}  {:>6}  {:>10}\n";

/// A share of a peak that is 0 where nobody has published it.
std::string percent(double value, double peak) {
  return peak > 0 ? fmt::format("{:.1f} %", 100 * value / peak) : "?";
}

std::string machine_text(const DeviceInfo& gpu) {
  return labelled("machine", fmt::format("{}, {} multiprocessors, {}", gpu.name, gpu.num_processors,
                                         bytes_text(static_cast<double>(gpu.memory_bytes)))) +
         labelled("published peaks",
                  fmt::format("f16 and bf16 {}, reads {}", decimal_text(gpu.f16_flops_per_second, "FLOP/s"),
                              decimal_text(gpu.memory_bytes_per_second, "B/s")));
}

std::string header_text(std::size_t width) {
  return fmt::format(fmt::runtime(kRow), "case", width, "backend", "median", "spread", "bursts", "speed",
                     "peak", "traffic", "reads", "memory");
}

std::string row_text(const GpuResult& r, const DeviceInfo& gpu, std::size_t width) {
  if (!r.timing) {
    return fmt::format("{:<{}}  {:<7}  FAILED, not timed: {}\n", r.case_text, width, r.backend,
                       r.check->failure);
  }
  return fmt::format(
      fmt::runtime(kRow), r.case_text, width, r.backend, seconds_text(r.timing->median),
      fmt::format("{:.1f} %", 100 * r.timing->spread()), r.timing->num_runs,
      decimal_text(r.flops_per_second(), "FLOP/s"), percent(r.flops_per_second(), gpu.f16_flops_per_second),
      decimal_text(r.bytes_per_second(), "B/s"), percent(r.bytes_per_second(), gpu.memory_bytes_per_second),
      bytes_text(static_cast<double>(r.memory_bytes)));
}

constexpr const char* kLegend =
    "median: of a run in bursts of about 8 ms with pauses of 60 ms, by the GPU's clock; spread: half the\n"
    "distance of the quartiles; peak, reads: share of the published peaks; traffic: every tensor once, and\n"
    "calls bound by memory use copies of the inputs in turn, too many for the cache; memory: allocated "
    "beside\n"
    "inputs and outputs; naive: S and P stored, products without tensor cores\n";

// --- JSON ------------------------------------------------------------------------------------------------

Json result_to_json(const GpuResult& r, const DeviceInfo& gpu) {
  Json json = {{"case", r.case_text},
               {"backend", r.backend},
               {"implementation", r.implementation},
               {"num_splits", r.num_splits},
               {"flops", r.work.flops},
               {"bytes", r.work.bytes},
               {"memory_bytes", r.memory_bytes},
               {"check", r.check ? to_json(*r.check) : Json(nullptr)}};
  if (!r.timing) return json;
  json["bursts"] = r.timing->num_runs;
  json["runs_per_burst"] = r.runs_per_burst;
  json["input_sets"] = r.num_input_sets;
  json["seconds"] = to_json(*r.timing);
  json["flops_per_second"] = r.flops_per_second();
  json["bytes_per_second"] = r.bytes_per_second();
  if (gpu.f16_flops_per_second > 0) {
    json["share_of_peak"] = r.flops_per_second() / gpu.f16_flops_per_second;
    json["share_of_reads"] = r.bytes_per_second() / gpu.memory_bytes_per_second;
  }
  return json;
}

}  // namespace

ExitStatus gpu_bench_command(const CommandLine& line) {
  const BenchOptions& o = line.bench;
  const std::vector<NamedCase> cases = collect_cases(kCall, o.cases);
  require_forward(kCall, cases);
  check_all(cases, o);
  const DeviceInfo gpu = device_of(Backend::Cuda, kCall);
  std::size_t width = 4;
  for (const NamedCase& named : cases) width = std::max(width, named.text.size());
  if (!line.json) print_text(machine_text(gpu) + "\n" + header_text(width));

  Progress progress(line.progress || stderr_is_terminal());
  const auto num_cases = static_cast<std::int64_t>(cases.size());
  bool all_passed = true;
  Json json_results = Json::array();
  for (std::int64_t i = 0; i < num_cases; ++i) {
    GpuBench bench(cases[static_cast<std::size_t>(i)], o);
    const auto results = bench.results([&](const std::string& what) { progress.show(i, num_cases, what); });
    progress.clear();
    for (const GpuResult& result : results) {
      all_passed = all_passed && result.passed();
      if (line.json) {
        json_results.push_back(result_to_json(result, gpu));
      } else {
        print_text(row_text(result, gpu, width));
      }
    }
  }
  if (line.json) {
    print_json({{"version", version()},
                {"machine", {{"gpu", device_to_json(gpu)}}},
                {"results", std::move(json_results)}});
  } else {
    print_text(std::string("\n") + kLegend);
  }
  return all_passed ? ExitStatus::Done : ExitStatus::CheckFailed;
}

}  // namespace onepass::cli
