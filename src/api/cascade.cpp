// The calls of a cascade: two forward plans, and the merge of what they give.
#include "onepass/cascade.h"

#include <algorithm>

#include "api/call_workspace.h"
#include "api/prepared.h"
#include "backends/cpu/merge.h"
#include "backends/cuda/host/forward.h"
#include "backends/cuda/host/merge.h"
#include "backends/launch.h"
#include "plan/make_plan.h"
#include "problem/cascade_parts.h"
#include "problem/validate.h"
#include "support/message.h"

namespace onepass {
namespace {

constexpr const char *kPrefixOut = "prefix_out", *kPrefixLse = "prefix_lse", *kOwnLse = "own_lse",
                     *kParts = "parts";  // the workspaces of both plans: one runs after the other

PlanRequest request_of(const ForwardOptions& options) {
  return {options.backend, options.num_threads, options.num_splits};
}

CascadePlan make_cascade(const char* call, const CascadeArguments& args, const ForwardOptions& options,
                         const DeviceInfo& device) {
  const CascadeParts parts = cascade_parts(call, args, options, {});
  CascadePlan plan;
  plan.prefix = make_plan(call, validate_problem(call, parts.prefix, parts.prefix_options),
                          request_of(parts.prefix_options), device);
  plan.own = make_plan(call, validate_problem(call, parts.own, options), request_of(options), device);
  const AttentionProblem& own = *plan.own.problem;
  const auto rows = static_cast<std::size_t>(own.total_q), heads = static_cast<std::size_t>(own.num_heads_q);
  const std::size_t lse_bytes = workspace_product(kPrefixLse, rows * heads, sizeof(float));
  const auto row_bytes = static_cast<std::size_t>(own.head_dim_v * dtype_bytes(own.q_dtype));
  add_workspace_piece(plan.workspace, kPrefixOut, workspace_product(kPrefixOut, rows * heads, row_bytes));
  add_workspace_piece(plan.workspace, kPrefixLse, lse_bytes);
  if (!args.own.softmax_lse.present()) add_workspace_piece(plan.workspace, kOwnLse, lse_bytes);
  add_workspace_piece(plan.workspace, kParts,
                      std::max(plan.prefix.workspace_bytes(), plan.own.workspace_bytes()));
  return plan;
}

DeviceInfo device_of(const CascadeArguments& args) {
  const TensorView& q = args.own.q;
  return q.device == DeviceKind::Cuda ? cuda::device_info(q.device_idx) : this_cpu();
}

}  // namespace

CascadePlan prepared_cascade(const char* call, const CascadeArguments& args, const ForwardOptions& options) {
  return make_cascade(call, args, options, device_of(args));
}

/// `workspace` is of the size that the plan asks for.
void run_prepared(const char* call, const CascadePlan& plan, const CascadeArguments& args,
                  std::span<std::byte> workspace, Stream stream) {
  const auto piece = [&](const char* name) { return workspace_piece(plan.workspace, workspace, name); };
  const CascadeParts parts =
      cascade_parts(call, args, options_of(*plan.own.problem),
                    {piece(kPrefixOut).data(), piece(kPrefixLse).data(), piece(kOwnLse).data()});
  validate_run(call, *plan.prefix.problem, parts.prefix);
  validate_run(call, *plan.own.problem, parts.own);
  const std::span<std::byte> inner = piece(kParts);
  launch(plan.prefix, parts.prefix, inner.first(plan.prefix.workspace_bytes()), stream);
  launch(plan.own, parts.own, inner.first(plan.own.workspace_bytes()), stream);
  if (args.own.q.device == DeviceKind::Cuda) {
    cuda::merge(parts.merge, stream);
  } else {
    cpu::merge(parts.merge, plan.own.num_threads);
  }
  fill_unowned_rows(plan.own, parts.own, stream);  // rows of nobody have seen the prefix
}

std::size_t CascadePlan::workspace_bytes() const { return onepass::workspace_bytes(workspace); }

std::string CascadePlan::explain() const {
  return "the prefix, for all sequences\n" + prefix.explain() + "\nwhat each sequence has of its own\n" +
         own.explain();
}

CascadePlan plan(const CascadeArguments& args, const ForwardOptions& options, const DeviceInfo& device) {
  return make_cascade("plan", args, options, device);
}

CascadePlan plan(const CascadeArguments& args, const ForwardOptions& options) {
  return plan(args, options, device_of(args));
}

void run(const CascadePlan& plan, const CascadeArguments& args, std::span<std::byte> workspace,
         Stream stream) {
  if (plan.own.problem == nullptr || plan.prefix.problem == nullptr) {
    throw_invalid("run", "plan is empty", "a plan returned by onepass::plan", "call onepass::plan first");
  }
  check_workspace(plan.workspace_bytes(), workspace);
  run_prepared("run", plan, args, workspace, stream);
}

void cascade(const CascadeArguments& args, const ForwardOptions& options, Stream stream) {
  const CascadePlan made = prepared_cascade("cascade", args, options);
  const CallWorkspace memory(args.own.q, made.workspace_bytes(), stream);
  run_prepared("cascade", made, args, memory.bytes(), stream);
}

}  // namespace onepass
