#include "backends/launch.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "backends/cpu/backend.h"
#include "backends/cuda/host/backward.h"
#include "backends/cuda/host/forward.h"
#include "plan/mixed_plan.h"
#include "plan/planned_kernel.h"
#include "problem/attention_problem.h"
#include "support/message.h"

namespace onepass {
namespace {

/// A CPU has no streams.
template <class Arguments, void (*kRun)(const Plan&, const Arguments&, std::span<std::byte>)>
void on_cpu(const Plan& plan, const Arguments& args, std::span<std::byte> workspace, Stream /*stream*/) {
  kRun(plan, args, workspace);
}

template <class Arguments>
struct Runner {
  std::string_view implementation;
  void (*run)(const Plan&, const Arguments&, std::span<std::byte>, Stream);
};

constexpr Runner<ForwardArguments> kForward[] = {
    {kMixedForward, cuda::run_mixed},
    {"sm90_forward", cuda::run_forward},
    {"sm90_decode", cuda::run_forward},
    {"sm80_forward", cuda::run_forward},
    {"cpu_simd", on_cpu<ForwardArguments, cpu::run_simd>},
    {"cpu_reference", on_cpu<ForwardArguments, cpu::run_reference>},
};

constexpr Runner<BackwardArguments> kBackward[] = {
    {"sm90_backward", cuda::run_backward},
    {"sm80_backward", cuda::run_backward},
    {"cpu_simd", on_cpu<BackwardArguments, cpu::run_simd>},
    {"cpu_reference", on_cpu<BackwardArguments, cpu::run_reference>},
};

template <class Arguments>
void launch_one_of(std::span<const Runner<Arguments>> runners, const Plan& plan, const Arguments& args,
                   std::span<std::byte> workspace, Stream stream) {
  for (const Runner<Arguments>& runner : runners) {
    if (runner.implementation == plan.implementation) return runner.run(plan, args, workspace, stream);
  }
  throw InternalError(format_message("run",
                                     fmt::format("the plan names implementation \"{}\" for {}",
                                                 plan.implementation, to_string(*plan.problem)),
                                     "an implementation of this library",
                                     "please report this with the text above"));
}

}  // namespace

void launch(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace, Stream stream) {
  launch_one_of<ForwardArguments>(kForward, plan, args, workspace, stream);
}

void launch(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace, Stream stream) {
  launch_one_of<BackwardArguments>(kBackward, plan, args, workspace, stream);
}

void fill_unowned_rows(const Plan& plan, const ForwardArguments& args, Stream stream) {
  if (plan.device.kind == DeviceInfo::Kind::Cpu) return cpu::fill_unowned_rows(*plan.problem, args);
  Plan fill = plan;
  fill.parts.clear();
  std::erase_if(fill.steps,
                [](const PlanStep& step) { return step.gpu_kernel->spec.family != KernelFamily::FillRows; });
  cuda::run_forward(fill, args, {}, stream);
}

}  // namespace onepass
