// The text of the sm80 backward kernels, run on the CPU and held to the float64 evaluation.
#include <gtest/gtest.h>

#include <string>

#include "backends/cuda/host/backward.h"
#include "plan/planned_kernel.h"
#include "problem/case_text.h"
#include "tests/emulator/block.h"
#include "tests/emulator/cases.h"
#include "tests/emulator/kernel_table.h"
#include "tests/emulator/plan_on.h"
#include "verify/check.h"

namespace onepass::emulator {
namespace {

/// The steps of the plan, one after another, as run_backward queues them.
void run_steps(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace) {
  cuda::BackwardParams params = cuda::backward_params(plan, args, workspace);
  int error = 0;
  params.forward.error_flag = &error;
  for (const PlanStep& step : plan.steps) {
    const EmulatedKernel& kernel = kernel_named(step.kernel);
    SCOPED_TRACE(step.kernel);
    const KernelSpec& spec = step.gpu_kernel->spec;
    try {
      launch([&] { kernel.entry(&params); }, step.num_work_items, num_threads(spec),
             static_cast<int>(shared_bytes(spec)));
    } catch (const Fault& fault) {
      FAIL() << fault.what();
    }
  }
  EXPECT_EQ(error, 0) << "a kernel reports a length out of bounds";
}

class emulated_sm80_backward : public ::testing::TestWithParam<EmulatedCase> {};

TEST_P(emulated_sm80_backward, agrees_with_float64) {
  SCOPED_TRACE(std::string(GetParam().device) + " " + GetParam().text);
  const verify::GradientTensors tensors = verify::make_gradient_tensors(parse_case(GetParam().text));
  const Plan plan = plan_on(emulated_device(GetParam().device, kForwardInstructions), tensors);
  verify::GuardedBuffer workspace(plan.workspace_bytes());
  ASSERT_NO_FATAL_FAILURE(
      run_steps(plan, tensors.args, {static_cast<std::byte*>(workspace.data()), workspace.size()}));
  const verify::CheckReport report = verify::check_gradients(tensors.args, tensors.options);
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(tensors.damage(), std::nullopt);
  EXPECT_TRUE(workspace.guards_intact()) << "memory beside the workspace was written";
}

INSTANTIATE_TEST_SUITE_P(cases, emulated_sm80_backward, ::testing::ValuesIn(kSm80BackwardCases),
                         case_test_name);

}  // namespace
}  // namespace onepass::emulator
