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
#include "tests/emulator/kernel_table.h"
#include "tests/emulator/plan_on.h"
#include "tests/emulator/run_plan.h"
#include "verify/check.h"
#include "verify/tensor_views.h"

namespace onepass::emulator {
namespace {

std::int64_t piece_bytes(const Plan& plan, const std::string& name) {
  const auto piece = std::find_if(plan.workspace.begin(), plan.workspace.end(),
                                  [&](const WorkspacePiece& known) { return known.name == name; });
  return piece == plan.workspace.end() ? 0 : static_cast<std::int64_t>(piece->bytes);
}

/// The steps of the plan but for its parts, one after another, as run_backward queues them.
void run_own_steps(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace,
                   BlockOrder order, int& error) {
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
    const bool of_all =
        spec.family == KernelFamily::FillGradients || spec.family == KernelFamily::BackwardSinks;
    const void* taken = of_all ? static_cast<const void*>(&params) : sm90.get();
    try {
      launch([&] { kernel_named(step.kernel).entry(taken); },
             {step.num_work_items, num_threads(spec), static_cast<int>(shared_bytes(spec)), order});
    } catch (const Fault& fault) {
      FAIL() << fault.what();
    }
  }
}

void run_steps(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace,
               BlockOrder order, int& error) {
  error = 0;
  ASSERT_NO_FATAL_FAILURE(run_own_steps(plan, args, workspace, order, error));
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    ASSERT_NO_FATAL_FAILURE(run_own_steps(plan.parts[i], cuda::part_arguments(plan, i, args),
                                          workspace_piece(plan, workspace, kPieceParts), order, error));
  }
}

std::span<std::byte> bytes_of(verify::GuardedBuffer& memory) {
  return {static_cast<std::byte*>(memory.data()), memory.size()};
}

/// Runs the plan on outputs that hold poison, in a workspace between guards.
void run_on_poison(const Plan& plan, verify::GradientTensors& tensors, verify::GuardedBuffer& memory,
                   BlockOrder order = BlockOrder::Ascending) {
  tensors.poison_outputs();
  int error = 0;
  ASSERT_NO_FATAL_FAILURE(run_steps(plan, tensors.args, bytes_of(memory), order, error));
  EXPECT_EQ(error, 0) << "a kernel reports a length out of bounds";
  EXPECT_TRUE(memory.guards_intact()) << "memory beside the workspace was written";
}

std::vector<double> gradients(const BackwardArguments& args) {
  std::vector<double> values;
  for (const auto& [name, view] : verify::gradients_of(args)) {
    if (view->present()) verify::each_element(*view, [&](auto, auto, double x) { values.push_back(x); });
  }
  return values;
}

void expect_right(const verify::GradientTensors& tensors) {
  const verify::CheckReport report = verify::check_gradients(tensors.args, tensors.options);
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(tensors.damage(), std::nullopt);
}

class emulated_backward : public ::testing::TestWithParam<EmulatedCase> {};

TEST_P(emulated_backward, agrees_with_float64_and_with_itself_in_any_order_of_blocks) {
  SCOPED_TRACE(GetParam().text);
  verify::GradientTensors tensors = verify::make_gradient_tensors(parse_case(GetParam().text));
  const Plan plan = plan_on(small_device(), tensors);
  ASSERT_EQ(plan.implementation, "sm90_backward");
  verify::GuardedBuffer memory(plan.workspace_bytes());
  std::vector<double> first;
  for (const BlockOrder order : {BlockOrder::Ascending, BlockOrder::Descending}) {
    ASSERT_NO_FATAL_FAILURE(run_on_poison(plan, tensors, memory, order));
    expect_right(tensors);
    if (first.empty()) first = gradients(tensors.args);
    EXPECT_EQ(gradients(tensors.args), first);
  }
}

TEST(emulated_backward_parts, run_in_the_memory_of_the_largest) {
  for (const char* text : {"bf16_b2_hq6_hk3_sq140_sk150_d64_causal_sink_dlse_bwd",
                           "f16_b2_hq3_sq130_sk140_d80_dv72_causal_bhsd_bwd",
                           "bf16_b3_hq6_hk3_sq100_sk190_d128_packed_ragged_gap_seed2_bwd"}) {
    SCOPED_TRACE(text);
    verify::GradientTensors tensors = verify::make_gradient_tensors(parse_case(text));
    const Plan whole = plan_on(small_device(), tensors);
    ASSERT_TRUE(whole.parts.empty());
    for (const std::int64_t heads_of_most : {1, 2}) {
      DeviceInfo device = small_device();
      device.l2_bytes = piece_bytes(whole, kPieceDqSums) * heads_of_most / 3 / 3 + 1;
      const Plan plan = plan_on(device, tensors);
      ASSERT_EQ(plan.parts.size(), heads_of_most == 1 ? 3U : 2U);
      EXPECT_EQ(plan.parts.back().problem->num_heads_k, heads_of_most);
      EXPECT_LT(plan.workspace_bytes(), whole.workspace_bytes());
      verify::GuardedBuffer memory(plan.workspace_bytes());
      ASSERT_NO_FATAL_FAILURE(run_on_poison(plan, tensors, memory));
      expect_right(tensors);
    }
  }
}

TEST(emulated_backward_indices, whatever_they_are_a_launch_ends_and_stays_in_its_memory) {
  const verify::GradientTensors tensors =
      verify::make_gradient_tensors(parse_case("f16_b3_hq2_sq150_sk200_d128_packed_ragged_gap_seed4_bwd"));
  const Plan plan = plan_on(small_device(), tensors);
  verify::GuardedBuffer memory(plan.workspace_bytes());
  constexpr int kMost = std::numeric_limits<int>::max() / 2;
  for (const std::array<int, 4>& offsets : std::initializer_list<std::array<int, 4>>{
           {150, 0, 150, 0}, {-kMost, kMost, 1, 1 << 20}, {100, 70, 40, 200}, {0, 0, 0, 0}}) {
    for (const TensorView* view : {&tensors.args.forward.cu_seqlens_q, &tensors.args.forward.cu_seqlens_k})
      std::copy(offsets.begin(), offsets.end(), static_cast<int*>(view->data));
    int error = 0;
    ASSERT_NO_FATAL_FAILURE(run_steps(plan, tensors.args, bytes_of(memory), BlockOrder::Ascending, error));
    EXPECT_TRUE(memory.guards_intact());
    for (const verify::CaseTensors::Buffer& buffer : tensors.buffers)
      EXPECT_TRUE(buffer.memory->guards_intact()) << buffer.name;
  }
}

TEST(emulated_backward_invariant, neither_multiprocessors_nor_other_heads_change_a_bit) {
  for (const char* text : {"bf16_b2_hq4_hk2_sq200_sk260_d128_causal_invariant_bwd",
                           "bf16_b1_hq2_sq270_sk260_d128_invariant_bwd"}) {
    SCOPED_TRACE(text);
    verify::GradientTensors tensors = verify::make_gradient_tensors(parse_case(text));
    std::vector<double> first;
    for (const int num_processors : {3, 7, 2}) {
      DeviceInfo device = small_device(num_processors);
      if (num_processors == 2) device.l2_bytes = 1;  // heads one after another
      const Plan plan = plan_on(device, tensors);
      EXPECT_EQ(plan.parts.size(), num_processors == 2 ? 2U : 0U);
      verify::GuardedBuffer memory(plan.workspace_bytes());
      ASSERT_NO_FATAL_FAILURE(run_on_poison(plan, tensors, memory));
      if (first.empty()) first = gradients(tensors.args);
      EXPECT_EQ(gradients(tensors.args), first) << num_processors;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(cases, emulated_backward, ::testing::ValuesIn(kBackwardCases), case_test_name);

}  // namespace
}  // namespace onepass::emulator
