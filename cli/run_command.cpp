// onepass run: attention on tensors from files.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/check_report.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/progress.h"
#include "cli/run_inputs.h"
#include "cli/tensor_summary.h"
#include "cli/text_output.h"
#include "plan/explain.h"
#include "problem/validate.h"
#include "verify/check.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass run";

/// Whether the 4-dimensional tensors make a valid problem in the other layout.
bool other_layout_fits(ForwardArguments args, const ForwardOptions& options) {
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.out}) {
    if (view->rank == 4) *view = transpose(*view, 1, 2);
  }
  if (args.softmax_lse.rank == 3) args.softmax_lse = transpose(args.softmax_lse, 1, 2);
  try {
    validate_problem(kCall, args, options);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

std::unique_ptr<Execution> prepare(const RunOptions& run, const ForwardArguments& args,
                                   const ForwardOptions& options) {
  try {
    return make_execution(kCall, args, options);
  } catch (const InvalidArgument& e) {
    // The rules speak of views; on the command line an exchanged layout has a shorter cure.
    if (args.q.rank != 4 || !other_layout_fits(args, options)) throw;
    const std::string message = e.what();
    throw InvalidArgument(
        fmt::format("{}\n  Fix: the shapes fit the other order of dimensions: use --layout {}.",
                    message.substr(0, message.find("\n  Fix:")), run.heads_first ? "bshd" : "bhsd"));
  }
}

/// Returns where the outputs went.
std::vector<std::string> write_outputs(const RunOptions& o, const RunInputs& inputs) {
  std::vector<io::OutputTensor> outputs;
  if (!o.out.empty()) outputs.push_back({o.out, inputs.out_file});
  if (!o.lse.empty()) outputs.push_back({o.lse, inputs.args.softmax_lse});
  const DeferInterrupts finish_files_first;
  io::write_tensors(outputs, kCall);
  std::vector<std::string> specs;
  specs.reserve(outputs.size());
  for (const io::OutputTensor& output : outputs) specs.push_back(output.spec);
  return specs;
}

struct RunResult {
  explicit RunResult(const Plan& p) : plan(p) {}

  const Plan& plan;
  double seconds = 0, flops = 0;
  TensorSummary out, lse;
  std::optional<verify::CheckReport> check;
  std::vector<std::string> written;

  bool passed() const { return !check || check->passed; }
};

std::string result_text(const RunResult& r) {
  const Plan& plan = r.plan;
  std::string text;
  text += labelled("problem", to_string(*plan.problem));
  text += labelled(
      "plan", fmt::format("{}, tiles {} x {}, {} split{}, {} thread{}, workspace {}", plan.implementation,
                          plan.tile_m, plan.tile_n, plan.num_splits, plan.num_splits == 1 ? "" : "s",
                          plan.num_threads, plan.num_threads == 1 ? "" : "s",
                          bytes_text(static_cast<double>(plan.workspace_bytes()))));
  const bool on_gpu = plan.device.kind == DeviceInfo::Kind::Cuda;
  text += labelled("time", fmt::format("{} ({}): {}", seconds_text(r.seconds),
                                       on_gpu ? "one run on the GPU, after one that loaded the kernels"
                                              : "one run, nothing warmed up",
                                       decimal_text(r.flops / r.seconds, "FLOP/s")));
  text += labelled("out", to_text(r.out));
  text += labelled("lse", to_text(r.lse));
  if (r.check)
    text +=
        labelled("check", fmt::format("{}: {}", r.check->passed ? "passed" : "FAILED", summary(*r.check)));
  if (!r.passed()) text += labelled("written", "nothing, because the check failed");
  for (const std::string& spec : r.written) text += labelled("written", spec);
  return text;
}

Json result_json(const RunResult& r) {
  Json json = {{"problem", problem_to_json(*r.plan.problem)},
               {"plan", plan_to_json(r.plan)},
               {"seconds", r.seconds},
               {"flops", r.flops},
               {"flops_per_second", r.flops / r.seconds},
               {"out", to_json(r.out)},
               {"lse", to_json(r.lse)}};
  if (r.check) json["check"] = to_json(*r.check);
  json["written"] = r.written;
  return json;
}

}  // namespace

ExitStatus run_command(const CommandLine& line) {
  const RunOptions& o = line.run;
  use_instruction_set(o.execution.instruction_set);
  const RunInputs inputs = load_run_inputs(o);
  const ForwardArguments& args = inputs.args;
  const ForwardOptions options = with_execution(o.forward, o.execution);
  const std::unique_ptr<Execution> execution = prepare(o, args, options);

  Progress progress(line.progress || stderr_is_terminal());
  RunResult result(execution->plan());
  result.seconds = execution->run();
  result.flops = exact_work(execution->plan(), args).flops;
  result.out = summarise(args.out);
  result.lse = summarise(args.softmax_lse);
  if (o.check) {
    result.check = verify::check_result(args, options, [&](double share) {
      progress.show(std::lround(100 * share), 100, "percent of the float64 evaluation");
    });
    progress.clear();
  }
  if (result.passed()) result.written = write_outputs(o, inputs);

  if (line.json) {
    print_json(result_json(result));
  } else {
    print_text(result_text(result));
  }
  return result.passed() ? ExitStatus::Done : ExitStatus::CheckFailed;
}

}  // namespace onepass::cli
