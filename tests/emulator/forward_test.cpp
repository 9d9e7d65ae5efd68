// The text of the sm80 kernels, run on the CPU and held to the float64 evaluation.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plan/mixed_plan.h"
#include "problem/case_text.h"
#include "tests/emulator/cases.h"
#include "tests/emulator/plan_on.h"
#include "tests/emulator/run_plan.h"
#include "verify/check.h"

namespace onepass::emulator {
namespace {

class emulated_forward : public ::testing::TestWithParam<EmulatedCase> {};

TEST_P(emulated_forward, agrees_with_float64) {
  SCOPED_TRACE(std::string(GetParam().device) + " " + GetParam().text);
  const verify::CaseTensors tensors = verify::make_tensors(parse_case(GetParam().text));
  const Plan plan = plan_on(emulated_device(GetParam().device, kForwardInstructions), tensors);
  verify::GuardedBuffer workspace(plan.workspace_bytes());
  ASSERT_NO_FATAL_FAILURE(
      run_plan(plan, tensors.args, {static_cast<std::byte*>(workspace.data()), workspace.size()}));
  const verify::CheckReport report = verify::check_result(tensors.args, tensors.options);
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(tensors.damage(), std::nullopt);
  EXPECT_TRUE(workspace.guards_intact()) << "memory beside the workspace was written";
}

TEST(emulated_mixed, batches_have_sequences_of_both_kinds) {
  int num_mixed = 0;
  for (const EmulatedCase& c : kCases) {
    const verify::CaseTensors tensors = verify::make_tensors(parse_case(c.text));
    const Plan plan = plan_on(emulated_device(c.device, kForwardInstructions), tensors);
    if (plan.implementation != kMixedForward) continue;
    ++num_mixed;
    SCOPED_TRACE(c.text);
    const std::int64_t few_rows = plan.parts[1].problem->seqlen_q;
    bool many = false, few = false;
    for (std::int64_t b = 0; b < plan.problem->batch; ++b) {
      const TensorView &cu = tensors.args.cu_seqlens_q, &used = tensors.args.seqused_q;
      const auto at = [](const TensorView& view, std::int64_t i) {
        return static_cast<const std::int32_t*>(view.data)[i];
      };
      const std::int64_t rows = used.present() ? at(used, b) : at(cu, b + 1) - at(cu, b);
      many = many || rows > few_rows;
      few = few || (rows > 0 && rows <= few_rows);
    }
    EXPECT_TRUE(many && few);
  }
  EXPECT_EQ(num_mixed, 1);
}

INSTANTIATE_TEST_SUITE_P(cases, emulated_forward, ::testing::ValuesIn(kCases), case_test_name);

}  // namespace
}  // namespace onepass::emulator
