#include "cli/execution.h"

#include <chrono>
#include <new>

#include "backends/cpu/backend.h"
#include "backends/cpu/sequence.h"
#include "backends/cuda/host/forward.h"
#include "cli/gpu_execution.h"
#include "dispatch/accounting.h"
#include "plan/make_plan.h"
#include "problem/validate.h"

namespace onepass::cli {
namespace {
constexpr std::align_val_t kWorkspaceAlignment{64};
}

void use_instruction_set(const std::string& name) {
  if (!name.empty()) cpu::force_simd_instruction_set(name);
}

ForwardOptions with_execution(ForwardOptions options, const ExecutionOptions& execution) {
  options.backend = execution.backend;
  options.num_threads = execution.num_threads;
  if (execution.num_splits != 0) options.num_splits = execution.num_splits;
  return options;
}

DeviceInfo device_of(Backend backend, const char* call) {
  return backend == Backend::Cuda ? cuda::device_info(0, call) : this_cpu();
}

std::unique_ptr<Execution> make_execution(const char* call, const ForwardArguments& args,
                                          const ForwardOptions& options) {
  if (options.backend == Backend::Cuda) return std::make_unique<GpuExecution>(call, args, options);
  return std::make_unique<CpuExecution>(call, args, options);
}

CpuExecution::CpuExecution(const char* call, const ForwardArguments& args, const ForwardOptions& options)
    : args_(args) {
  const AttentionProblem problem = validate_problem(call, args, options);
  validate_run(call, problem, args);
  plan_ = make_plan(call, problem, {options.backend, options.num_threads, options.num_splits}, this_cpu());
  auto* memory = static_cast<std::byte*>(::operator new[](plan_.workspace_bytes(), kWorkspaceAlignment));
  workspace_ =
      std::shared_ptr<std::byte[]>(memory, [](std::byte* p) { ::operator delete[](p, kWorkspaceAlignment); });
}

double CpuExecution::run(const ForwardArguments& args) const {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  onepass::run(plan_, args, {workspace_.get(), plan_.workspace_bytes()});
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Work exact_work(const Plan& plan, const ForwardArguments& args) {
  const AttentionProblem& problem = *plan.problem;
  if (!is_ragged(problem)) return {plan.accounting.flops, plan.accounting.bytes_lower_bound};
  Work work;
  AttentionProblem one = problem;  // a sequence as a dense problem of its own
  one.batch = 1;
  one.q_layout = one.k_layout = SequenceLayout::Dense;
  one.has_seqused_q = one.has_seqused_k = false;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const cpu::Sequence s = cpu::sequence_at(problem, args, b);
    one.seqlen_q = one.total_q = s.seqlen_q;
    one.seqlen_k = one.total_k = s.seqlen_k;
    const Accounting accounting = account_forward(one, plan.device, plan.tile_m, plan.tile_heads);
    work.flops += accounting.flops;
    work.bytes += accounting.bytes_lower_bound;
  }
  return work;
}

}  // namespace onepass::cli
