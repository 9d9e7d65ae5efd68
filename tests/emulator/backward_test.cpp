// The text of the sm90 backward kernels, run on the CPU and held to the float64 evaluation.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/host/backward.h"
#include "backends/cuda/host/sm90_backward.h"
#include "plan/make_plan.h"
#include "plan/planned_kernel.h"
#include "problem/case_text.h"
#include "problem/validate.h"
#include "tests/emulator/block.h"
#include "tests/emulator/cases.h"
#include "tests/emulator/gradients.h"
#include "tests/emulator/kernel_table.h"
#include "tests/emulator/plan_on.h"
#include "tests/emulator/tensor_map.h"

namespace onepass::emulator {
namespace {

cuda::TensorMap encode(const cuda::TiledTensor& tensor) {
  return to_tensor_map({tensor.data, tensor.extents, tensor.steps_bytes, tensor.box});
}

/// The steps of the plan, one after another, as run_backward queues them.
void run_steps(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace,
               BlockOrder order, int& error) {
  error = 0;
  cuda::BackwardParams params = cuda::backward_params(plan, args, workspace);
  params.forward.error_flag = &error;
  std::unique_ptr<cuda::Sm90BackwardParams> sm90;
  for (const PlanStep& step : plan.steps) {
    const PlannedKernel& kernel = *step.gpu_kernel;
    if (kernel.spec.family == KernelFamily::Sm90Backward)
      sm90.reset(new cuda::Sm90BackwardParams(
          cuda::sm90_backward_params(plan, kernel, args, workspace, params, encode)));
  }
  for (const PlanStep& step : plan.steps) {
    SCOPED_TRACE(step.kernel);
    const KernelSpec& spec = step.gpu_kernel->spec;
    const bool of_all = spec.family == KernelFamily::FillGradients;
    const void* taken = of_all ? static_cast<const void*>(&params) : sm90.get();
    try {
      launch([&] { kernel_named(step.kernel).entry(taken); },
             {step.num_work_items, num_threads(spec), static_cast<int>(shared_bytes(spec)), order});
    } catch (const Fault& fault) {
      FAIL() << fault.what();
    }
  }
}

class emulated_backward : public ::testing::TestWithParam<EmulatedCase> {};

TEST_P(emulated_backward, agrees_with_float64_and_with_itself_in_any_order_of_blocks) {
  SCOPED_TRACE(GetParam().text);
  GradientTensors tensors(parse_case(GetParam().text));
  const Plan plan = plan_on(small_device(), tensors);
  ASSERT_EQ(plan.implementation, "sm90_backward");
  verify::GuardedBuffer memory(plan.workspace_bytes());
  const std::span workspace(static_cast<std::byte*>(memory.data()), memory.size());
  std::vector<char> first;
  for (const BlockOrder order : {BlockOrder::Ascending, BlockOrder::Descending}) {
    tensors.poison_gradients();
    int error = 0;
    ASSERT_NO_FATAL_FAILURE(run_steps(plan, tensors.args, workspace, order, error));
    EXPECT_EQ(error, 0) << "a kernel reports a length out of bounds";
    EXPECT_EQ(tensors.differences(), "");
    EXPECT_TRUE(memory.guards_intact()) << "memory beside the workspace was written";
    if (first.empty()) first = tensors.gradient_bytes();
    EXPECT_EQ(tensors.gradient_bytes(), first);
  }
}

TEST(emulated_backward_indices, whatever_they_are_a_launch_ends_and_stays_in_its_memory) {
  GradientTensors tensors(parse_case("f16_b3_hq2_sq150_sk200_d128_packed_ragged_gap_seed4"));
  const Plan plan = plan_on(small_device(), tensors);
  verify::GuardedBuffer memory(plan.workspace_bytes());
  constexpr int kMost = std::numeric_limits<int>::max() / 2;
  for (const std::array<int, 4>& offsets : std::initializer_list<std::array<int, 4>>{
           {150, 0, 150, 0}, {-kMost, kMost, 1, 1 << 20}, {100, 70, 40, 200}, {0, 0, 0, 0}}) {
    for (const TensorView* view : {&tensors.args.forward.cu_seqlens_q, &tensors.args.forward.cu_seqlens_k})
      std::copy(offsets.begin(), offsets.end(), static_cast<int*>(view->data));
    int error = 0;
    ASSERT_NO_FATAL_FAILURE(run_steps(plan, tensors.args,
                                      {static_cast<std::byte*>(memory.data()), memory.size()},
                                      BlockOrder::Ascending, error));
    EXPECT_TRUE(memory.guards_intact());
    EXPECT_TRUE(tensors.guards_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(cases, emulated_backward, ::testing::ValuesIn(kBackwardCases), case_test_name);

}  // namespace
}  // namespace onepass::emulator
