// batch_invariant on a GPU: kernels are chosen without a look at the batch, and a row's bits follow from its
// own sequence. The kernels' text, run on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "problem/case_text.h"
#include "tests/emulator/cases.h"
#include "tests/emulator/plan_on.h"
#include "tests/emulator/run_plan.h"
#include "verify/check.h"
#include "verify/guarded_buffer.h"
#include "verify/one_sequence.h"

namespace onepass::emulator {
namespace {

void add_kernels(const Plan& plan, std::set<std::string>& names) {
  for (const PlanStep& step : plan.steps) names.insert(step.kernel);
  for (const Plan& part : plan.parts) add_kernels(part, names);
}

class Runs {
 public:
  explicit Runs(const EmulatedCase& c)
      : tensors_(verify::make_tensors(parse_case(c.text))), name_(c.device) {}

  verify::CaseTensors& tensors() { return tensors_; }

  /// Plans for a GPU with so many processors and runs: the bytes of sequence b.
  std::vector<char> bytes(const ForwardArguments& args, int num_processors, std::int64_t b) {
    DeviceInfo device = invariant_device(name_);
    device.num_processors = num_processors;
    const Plan plan = plan_on(device, args, tensors_.options);
    std::set<std::string> kernels;
    add_kernels(plan, kernels);
    if (kernels_.empty()) kernels_ = kernels;
    EXPECT_TRUE(std::includes(kernels_.begin(), kernels_.end(), kernels.begin(), kernels.end()))
        << "of the kernels of the whole batch";
    tensors_.poison_outputs();
    verify::GuardedBuffer workspace(plan.workspace_bytes());
    run_plan(plan, args, {static_cast<std::byte*>(workspace.data()), workspace.size()});
    EXPECT_TRUE(workspace.guards_intact()) << "memory beside the workspace was written";
    return verify::bytes_of_sequence(args, b);
  }

 private:
  verify::CaseTensors tensors_;
  const char* name_;
  std::set<std::string> kernels_;
};

class emulated_batch_invariance : public ::testing::TestWithParam<EmulatedCase> {};

TEST_P(emulated_batch_invariance, rows_have_the_same_bits_alone_and_in_any_batch_on_any_gpu) {
  SCOPED_TRACE(GetParam().text);
  Runs runs(GetParam());
  const ForwardArguments& args = runs.tensors().args;
  const bool packed = args.cu_seqlens_q.present();
  const std::int64_t batch = packed ? args.cu_seqlens_q.shape[0] - 1 : args.q.shape[0];
  runs.bytes(args, 132, 0);
  const verify::CheckReport report = verify::check_result(args, runs.tensors().options);
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(runs.tensors().damage(), std::nullopt);
  std::vector<std::vector<char>> together;
  for (std::int64_t b = 0; b < batch; ++b) together.push_back(verify::bytes_of_sequence(args, b));

  for (std::int64_t b = 0; b < batch; ++b) {
    SCOPED_TRACE("sequence " + std::to_string(b));
    EXPECT_EQ(runs.bytes(verify::one_sequence(args, b), 132, 0), together[static_cast<std::size_t>(b)])
        << "alone";
  }
  const std::vector<char>& last = together.back();
  EXPECT_EQ(runs.bytes(args, 5, batch - 1), last) << "on a small GPU";
  if (!args.seqused_k.present()) return;
  auto* used = static_cast<std::int32_t*>(args.seqused_k.data);
  for (std::int64_t other = 0; other < batch - 1; ++other) used[other] /= 3;
  EXPECT_EQ(runs.bytes(args, 132, batch - 1), last) << "beside shorter ones";
}

INSTANTIATE_TEST_SUITE_P(cases, emulated_batch_invariance, ::testing::ValuesIn(kInvariantCases),
                         case_test_name);

}  // namespace
}  // namespace onepass::emulator
