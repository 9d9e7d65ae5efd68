#include "backends/launch.h"

#include <fmt/format.h>

#include <string_view>

#include "backends/cpu/backend.h"
#include "backends/cuda/host/forward.h"
#include "problem/attention_problem.h"
#include "support/message.h"

namespace onepass {
namespace {

/// A CPU has no streams.
template <void (*kRun)(const Plan&, const ForwardArguments&, std::span<std::byte>)>
void on_cpu(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace,
            Stream /*stream*/) {
  kRun(plan, args, workspace);
}

struct Runner {
  std::string_view implementation;
  void (*run)(const Plan&, const ForwardArguments&, std::span<std::byte>, Stream);
};

constexpr Runner kRunners[] = {
    {"sm90_forward", cuda::run_forward},           {"sm90_decode", cuda::run_forward},
    {"sm80_forward", cuda::run_forward},           {"cpu_simd", on_cpu<cpu::run_simd>},
    {"cpu_reference", on_cpu<cpu::run_reference>},
};

}  // namespace

void launch(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace, Stream stream) {
  for (const Runner& runner : kRunners) {
    if (runner.implementation == plan.implementation) return runner.run(plan, args, workspace, stream);
  }
  throw InternalError(format_message("run",
                                     fmt::format("the plan names implementation \"{}\" for {}",
                                                 plan.implementation, to_string(*plan.problem)),
                                     "an implementation of this library",
                                     "please report this with the text above"));
}

}  // namespace onepass
