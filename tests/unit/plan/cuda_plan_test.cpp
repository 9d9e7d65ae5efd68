#include "plan/cuda_plan.h"

#include <gmock/gmock.h>

#include "plan/planned_kernel.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::dense_problem;
using testing::packed_problem;

Plan h200_plan(const AttentionProblem& problem, int num_splits = 0) {
  return make_plan("plan", problem, {.backend = Backend::Cuda, .num_splits = num_splits},
                   find_device("h200").value());
}

TEST(cuda_plan, steps_have_their_kernel_as_the_value_that_their_name_tells) {
  const Plan plan = h200_plan(packed_problem(2, 8, 2, 100, 150, 4096, 5000, 128), 3);
  ASSERT_EQ(plan.steps.size(), 3u) << "rows of no sequence, attention, splits";
  const KernelFamily families[] = {KernelFamily::FillRows, KernelFamily::Sm80Forward,
                                   KernelFamily::MergeSplits};
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const PlanStep& step = plan.steps[i];
    ASSERT_NE(step.gpu_kernel, nullptr);
    EXPECT_EQ(step.gpu_kernel->spec, parse_kernel_name(step.kernel));
    EXPECT_EQ(step.gpu_kernel->spec.family, families[i]);
    EXPECT_EQ(num_threads(step.gpu_kernel->spec), step.num_threads);
  }
  EXPECT_EQ(forward_kernel(plan), plan.steps[1].gpu_kernel.get());
}

TEST(cuda_plan, copies_share_what_they_have_loaded) {
  const Plan plan = h200_plan(dense_problem(1, 8, 8, 128, 128, 64));
  const Plan copy = plan;
  EXPECT_EQ(copy.steps.front().gpu_kernel, plan.steps.front().gpu_kernel);
}

TEST(cuda_plan, a_masked_hopper_kernel_has_a_ticket_in_the_workspace) {
  AttentionProblem problem = testing::bf16_problem(2, 8, 2, 512, 512, 128);
  EXPECT_TRUE(h200_plan(problem).workspace.empty()) << "without a mask, blocks take tiles in turn";
  problem.causal = Causal::BottomRight;
  const Plan plan = h200_plan(problem);
  EXPECT_EQ(plan.implementation, "sm90_forward");
  ASSERT_EQ(plan.workspace.size(), 1u);
  EXPECT_EQ(plan.workspace[0].name, kPieceTicket);
  EXPECT_EQ(plan.workspace[0].bytes, sizeof(std::uint64_t));
  EXPECT_EQ(plan.workspace[0].offset_bytes % sizeof(std::uint64_t), 0u);
}

TEST(cuda_plan, a_hopper_kernel_has_the_order_of_its_tiles) {
  AttentionProblem problem = testing::bf16_problem(1, 18, 18, 8192, 8192, 128);
  problem.causal = Causal::BottomRight;
  const Sm90TileOrder order = choose_sm90_forward(problem, find_device("h200").value()).order;
  EXPECT_NE(order, Sm90TileOrder{});
  EXPECT_EQ(forward_kernel(h200_plan(problem))->sm90_order, order);
}

TEST(cuda_plan, split_decode_is_one_step_that_counts_its_arrivals_in_the_workspace) {
  const AttentionProblem problem = testing::bf16_problem(2, 32, 8, 1, 4096, 128);
  const Plan plan = h200_plan(problem, 3);
  EXPECT_EQ(plan.implementation, "sm90_decode");
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.steps[0].num_work_items, 2 * 8 * 3);
  EXPECT_EQ(forward_kernel(plan), plan.steps[0].gpu_kernel.get());
  ASSERT_EQ(plan.workspace.size(), 3u);
  EXPECT_EQ(plan.workspace[0].name, kPieceSplitOut);
  EXPECT_EQ(plan.workspace[0].bytes, 3u * 2 * 32 * 128 * sizeof(float));
  EXPECT_EQ(plan.workspace[2].name, kPieceArrivals);
  EXPECT_EQ(plan.workspace[2].bytes, 2u * 8 * sizeof(std::uint64_t));
  EXPECT_TRUE(h200_plan(problem, 1).workspace.empty());
  EXPECT_TRUE(h200_plan(problem, 8).workspace.empty()) << "a cluster merges in its own memory";
}

TEST(cuda_plan, decode_in_blocks_that_stay_has_room_for_two_parts_of_each_block) {
  AttentionProblem problem = testing::bf16_problem(40, 32, 8, 1, 32768, 128);
  problem.has_seqused_k = true;
  const Plan plan = h200_plan(problem);
  EXPECT_EQ(plan.steps[0].num_work_items, 128);
  EXPECT_EQ(plan.num_splits, 1);
  ASSERT_EQ(plan.workspace.size(), 3u);
  EXPECT_EQ(plan.workspace[0].bytes, 128u * 2 * 8 * 128 * sizeof(float));
  EXPECT_EQ(plan.workspace[1].bytes, 128u * 2 * 8 * sizeof(float));
  EXPECT_EQ(plan.workspace[2].bytes, 128 * sizeof(std::uint64_t));
  EXPECT_THAT(plan.explain(), ::testing::HasSubstr("keys are shared out to blocks by their lengths"));
}

TEST(cuda_plan, decode_of_equal_lengths_goes_by_number_and_has_parts_only_where_it_splits) {
  const Plan whole = h200_plan(testing::bf16_problem(32, 32, 8, 1, 32768, 128));
  EXPECT_EQ(whole.steps[0].num_work_items, 128);
  EXPECT_TRUE(whole.workspace.empty());
  EXPECT_THAT(whole.explain(), ::testing::HasSubstr("one piece, by number: all sequences are as long"));
  const Plan split = h200_plan(testing::bf16_problem(1, 32, 8, 1, 131072, 128));
  EXPECT_EQ(split.num_splits, 16);
  ASSERT_EQ(split.workspace.size(), 3u);
  EXPECT_EQ(split.workspace[0].bytes, 16u * 32 * 128 * sizeof(float));
  EXPECT_EQ(split.workspace[2].bytes, 8 * sizeof(std::uint64_t));
  EXPECT_THAT(split.explain(), ::testing::HasSubstr("merged afterwards, by number"));
}

TEST(cuda_plan, says_why_keys_are_copied_one_by_one) {
  AttentionProblem problem = testing::bf16_problem(16, 32, 8, 1, 1024, 128);
  problem.k_layout = SequenceLayout::Paged;
  problem.has_seqused_k = true;
  problem.page_size = 5;
  EXPECT_THAT(h200_plan(problem).explain(),
              ::testing::HasSubstr("copies          key by key, 2 warps: boxes need pages of a multiple of 8 "
                                   "keys, and these have 5"));
  problem.page_size = 16;
  EXPECT_THAT(h200_plan(problem).explain(), ::testing::Not(::testing::HasSubstr("key by key")));
}

TEST(cuda_plan, rows_of_no_sequence_are_filled_before_a_hopper_kernel_too) {
  AttentionProblem problem = packed_problem(2, 8, 2, 100, 150, 4096, 5000, 128);
  problem.q = problem.out = {0, 8 * 128, 128, 1};
  problem.k = problem.v = {0, 2 * 128, 128, 1};
  const Plan plan = h200_plan(problem);
  ASSERT_EQ(plan.steps.size(), 2u);
  EXPECT_EQ(plan.steps[0].gpu_kernel->spec.family, KernelFamily::FillRows);
  EXPECT_EQ(plan.steps[1].gpu_kernel->spec.family, KernelFamily::Sm90Forward);
  EXPECT_EQ(forward_kernel(plan), plan.steps[1].gpu_kernel.get());
}

TEST(cuda_plan, without_queries_there_is_no_forward_kernel) {
  const Plan plan = h200_plan(packed_problem(2, 8, 2, 0, 40, 100, 200, 64));
  ASSERT_EQ(plan.steps.size(), 1u) << "rows of no sequence";
  EXPECT_EQ(forward_kernel(plan), nullptr);
}

TEST(cuda_plan, steps_of_a_cpu_have_no_gpu_kernel) {
  const Plan plan =
      make_plan("plan", dense_problem(2, 8, 2, 3, 4096, 64), {.num_splits = 5}, testing::invented_cpu(2));
  for (const PlanStep& step : plan.steps) EXPECT_EQ(step.gpu_kernel, nullptr);
}

}  // namespace
}  // namespace onepass
