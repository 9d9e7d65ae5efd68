// The public calls: views and options -> problem -> plan -> launch. No arithmetic and no rule lives here.
#include "onepass/attention.h"

#include <memory>

#include "api/call_workspace.h"
#include "api/prepared.h"
#include "backends/cpu/append_kv.h"
#include "backends/cpu/merge.h"
#include "backends/cuda/host/append_kv.h"
#include "backends/cuda/host/forward.h"
#include "backends/cuda/host/merge.h"
#include "backends/launch.h"
#include "plan/make_plan.h"
#include "plan/plan_cache.h"
#include "problem/validate.h"
#include "support/message.h"

namespace onepass {
namespace {

PlanRequest request_of(const ForwardOptions& options) {
  return {options.backend, options.num_threads, options.num_splits};
}

const TensorView& queries_of(const ForwardArguments& args) { return args.q; }
const TensorView& queries_of(const BackwardArguments& args) { return args.forward.q; }

template <class Arguments>
DeviceInfo device_of(const Arguments& args) {
  const TensorView& q = queries_of(args);
  return q.device == DeviceKind::Cuda ? cuda::device_info(q.device_idx) : this_cpu();
}

int cpu_threads(int num_threads) { return num_threads > 0 ? num_threads : this_cpu().num_processors; }

/// Most runs of a kept plan have tensors like those that it was made for.
void validate_run_of(const Plan& plan, const ForwardArguments& args) {
  if (plan.made_for != nullptr && same_but_data(*plan.made_for, args))
    return validate_data("run", *plan.problem, args);
  validate_run("run", *plan.problem, args);
}
void validate_run_of(const Plan& plan, const BackwardArguments& args) {
  validate_run("run", *plan.problem, args);
}

template <class Arguments>
void run_plan(const Plan& plan, const Arguments& args, std::span<std::byte> workspace, Stream stream) {
  if (plan.problem == nullptr) {
    throw_invalid("run", "plan is empty", "a plan returned by onepass::plan", "call onepass::plan first");
  }
  validate_run_of(plan, args);
  check_workspace(plan.workspace_bytes(), workspace);
  launch(plan, args, workspace, stream);
}

/// A plan for a call whose data is fit to run.
template <class Arguments>
std::shared_ptr<const Plan> prepared(const char* call, const Arguments& args, const ForwardOptions& options) {
  const AttentionProblem problem = validate_problem(call, args, options);
  validate_data(call, problem, args);
  return kept_plan(call, problem, request_of(options), device_of(args), queries_of(args).device_idx);
}

template <class Arguments>
void run_with_workspace(const Plan& plan, const Arguments& args, Stream stream) {
  const CallWorkspace memory(queries_of(args), plan.workspace_bytes(), stream);
  launch(plan, args, memory.bytes(), stream);
}

}  // namespace

Plan plan(const ForwardArguments& args, const ForwardOptions& options, const DeviceInfo& device) {
  Plan plan = make_plan("plan", validate_problem("plan", args, options), request_of(options), device);
  plan.made_for = std::make_shared<const ForwardArguments>(args);
  return plan;
}

Plan plan(const ForwardArguments& args, const ForwardOptions& options) {
  return plan(args, options, device_of(args));
}

void run(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace, Stream stream) {
  run_plan(plan, args, workspace, stream);
}

std::shared_ptr<const Plan> prepared_forward(const char* call, const ForwardArguments& args,
                                             const ForwardOptions& options) {
  return prepared(call, args, options);
}

void forward(const ForwardArguments& args, const ForwardOptions& options, Stream stream) {
  run_with_workspace(*prepared_forward("forward", args, options), args, stream);
}

Plan plan(const BackwardArguments& args, const ForwardOptions& options, const DeviceInfo& device) {
  return make_plan("plan", validate_problem("plan", args, options), request_of(options), device);
}

Plan plan(const BackwardArguments& args, const ForwardOptions& options) {
  return plan(args, options, device_of(args));
}

void run(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace, Stream stream) {
  run_plan(plan, args, workspace, stream);
}

std::shared_ptr<const Plan> prepared_backward(const char* call, const BackwardArguments& args,
                                              const ForwardOptions& options) {
  return prepared(call, args, options);
}

void backward(const BackwardArguments& args, const ForwardOptions& options, Stream stream) {
  run_with_workspace(*prepared_backward("backward", args, options), args, stream);
}

void merge(const MergeArguments& args, int num_threads, Stream stream) {
  validate_merge("merge", args, num_threads);
  if (args.out.device == DeviceKind::Cuda) return cuda::merge(args, stream);
  cpu::merge(args, cpu_threads(num_threads));
}

void append_kv(const AppendArguments& args, const AppendOptions& options, Stream stream) {
  const AppendProblem problem = validate_append("append_kv", args, options);
  if (args.k_new.device == DeviceKind::Cuda) return cuda::append_kv(args, problem, options, stream);
  cpu::append_kv(args, problem, options, cpu_threads(options.num_threads));
}

}  // namespace onepass
