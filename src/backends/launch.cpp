#include "backends/launch.h"

#include <fmt/format.h>

#include <string_view>

#include "backends/cpu/backend.h"
#include "problem/attention_problem.h"
#include "support/message.h"

namespace onepass {
namespace {

struct Runner {
  std::string_view implementation;
  void (*run)(const Plan&, const ForwardArguments&, std::span<std::byte>);
};

constexpr Runner kRunners[] = {
    {"cpu_simd", cpu::run_simd},
    {"cpu_reference", cpu::run_reference},
};

}  // namespace

void launch(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace) {
  for (const Runner& runner : kRunners) {
    if (runner.implementation == plan.implementation) return runner.run(plan, args, workspace);
  }
  throw InternalError(format_message("run",
                                     fmt::format("the plan names implementation \"{}\" for {}",
                                                 plan.implementation, to_string(*plan.problem)),
                                     "an implementation of this library",
                                     "please report this with the text above"));
}

}  // namespace onepass
