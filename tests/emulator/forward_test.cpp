// The text of the sm80 kernels, and plans of several launches, run on the CPU and held to the float64
// evaluation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/mixed_plan.h"
#include "problem/case_text.h"
#include "tests/emulator/cases.h"
#include "tests/emulator/plan_on.h"
#include "tests/emulator/run_plan.h"
#include "verify/check.h"

namespace onepass::emulator {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;

/// Runs the plan and holds what it gives to the float64 evaluation.
void check_plan(const Plan& plan, const verify::CaseTensors& tensors) {
  verify::GuardedBuffer workspace(plan.workspace_bytes());
  ASSERT_NO_FATAL_FAILURE(
      run_plan(plan, tensors.args, {static_cast<std::byte*>(workspace.data()), workspace.size()}));
  const verify::CheckReport report = verify::check_result(tensors.args, tensors.options);
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(tensors.damage(), std::nullopt);
  EXPECT_TRUE(workspace.guards_intact()) << "memory beside the workspace was written";
}

class emulated_forward : public ::testing::TestWithParam<EmulatedCase> {};

TEST_P(emulated_forward, agrees_with_float64) {
  SCOPED_TRACE(std::string(GetParam().device) + " " + GetParam().text);
  const verify::CaseTensors tensors = verify::make_tensors(parse_case(GetParam().text));
  check_plan(plan_on(emulated_device(GetParam().device, kForwardInstructions), tensors), tensors);
}

/// How many sequences with rows each part of a mixed plan takes.
std::vector<int> sequences_of_parts(const Plan& plan, const ForwardArguments& args) {
  const auto at = [](const TensorView& view, std::int64_t i) {
    return static_cast<const std::int32_t*>(view.data)[i];
  };
  const TensorView &cu = args.cu_seqlens_q, &used = args.seqused_q;
  std::vector<int> sequences(plan.parts.size(), 0);
  for (std::int64_t b = 0; b < plan.problem->batch; ++b) {
    const std::int64_t rows = used.present() ? at(used, b) : at(cu, b + 1) - at(cu, b);
    if (rows == 0) continue;
    std::size_t part = plan.parts.size() - 1;
    while (rows > plan.parts[part].problem->seqlen_q) --part;
    ++sequences[part];
  }
  return sequences;
}

TEST(emulated_mixed, a_batch_has_sequences_of_both_kinds) {
  int num_mixed = 0;
  for (const EmulatedCase& c : kCases) {
    const verify::CaseTensors tensors = verify::make_tensors(parse_case(c.text));
    const Plan plan = plan_on(emulated_device(c.device, kForwardInstructions), tensors);
    if (plan.implementation != kMixedForward) continue;
    ++num_mixed;
    EXPECT_THAT(sequences_of_parts(plan, tensors.args), ElementsAre(Gt(0), Gt(0))) << c.text;
  }
  EXPECT_EQ(num_mixed, 1);
}

TEST(emulated_mixed, three_launches_agree_with_float64) {
  for (const EmulatedCase& c : kMixedCases) {
    SCOPED_TRACE(c.text);
    const verify::CaseTensors tensors = verify::make_tensors(parse_case(c.text));
    const Plan plan = plan_on(small_device(std::stoi(c.device)), tensors);
    ASSERT_EQ(plan.implementation, kMixedForward);
    EXPECT_THAT(sequences_of_parts(plan, tensors.args), ElementsAre(Gt(0), Gt(0), Gt(0)));
    check_plan(plan, tensors);
  }
}

INSTANTIATE_TEST_SUITE_P(cases, emulated_forward, ::testing::ValuesIn(kCases), case_test_name);

}  // namespace
}  // namespace onepass::emulator
