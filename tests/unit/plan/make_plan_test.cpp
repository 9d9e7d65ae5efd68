#include "plan/make_plan.h"

#include <gmock/gmock.h>

#include "backends/cpu/backend.h"
#include "dispatch/accounting.h"
#include "plan/explain.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::dense_problem;
using ::testing::HasSubstr;
using testing::invented_cpu;

TEST(make_plan, keeps_problem_device_and_accounting_of_its_tile) {
  const AttentionProblem problem = dense_problem(2, 8, 2, 100, 300, 64);
  const Plan plan = make_plan("plan", problem, {}, invented_cpu(2));
  EXPECT_EQ(*plan.problem, problem);
  EXPECT_EQ(plan.device, invented_cpu(2));
  const Accounting expected = account_forward(problem, plan.device, plan.tile_m, plan.tile_heads);
  EXPECT_EQ(plan.accounting.bytes_one_pass, expected.bytes_one_pass);
  EXPECT_EQ(plan.accounting.flops, 2.0 * 2 * 8 * 100 * 300 * 128);
}

TEST(make_plan, without_splits_is_one_step_and_one_piece_of_scratch) {
  const AttentionProblem problem = dense_problem(2, 8, 2, 1024, 1024, 64);
  const Plan plan = make_plan("plan", problem, {.num_threads = 3}, invented_cpu(2));
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.steps[0].num_threads, 3);
  EXPECT_EQ(plan.steps[0].num_work_items, 2 * 2 * (1024 * 4 / plan.tile_m));
  ASSERT_EQ(plan.workspace.size(), 1u);
  EXPECT_EQ(plan.workspace[0].name, kPieceThreadScratch);
  EXPECT_EQ(plan.workspace[0].bytes, 3 * cpu::simd_scratch_bytes(problem, plan.tile_m, plan.tile_n));
}

TEST(make_plan, with_splits_adds_a_merge_step_and_room_for_partial_results) {
  const Plan plan =
      make_plan("plan", dense_problem(2, 8, 2, 3, 4096, 64), {.num_splits = 5}, invented_cpu(2));
  EXPECT_EQ(plan.num_splits, 5);
  ASSERT_EQ(plan.steps.size(), 2u);
  EXPECT_EQ(plan.steps[0].num_work_items, 2 * 5);
  EXPECT_EQ(plan.steps[1].kernel, "cpu_merge_splits");
  EXPECT_EQ(plan.steps[1].num_work_items, 2 * 8) << "a sequence and head each";
  ASSERT_EQ(plan.workspace.size(), 3u);
  EXPECT_EQ(plan.workspace[1].name, kPieceSplitOut);
  EXPECT_EQ(plan.workspace[1].bytes, 5u * 2 * 8 * 3 * 64 * 4);
  EXPECT_EQ(plan.workspace[2].name, kPieceSplitLse);
  EXPECT_EQ(plan.workspace[2].bytes, 5u * 2 * 8 * 3 * 4);
}

TEST(make_plan, reference_needs_no_workspace) {
  const Plan plan =
      make_plan("plan", dense_problem(2, 8, 2, 3, 40, 64), {.backend = Backend::Reference}, invented_cpu(2));
  EXPECT_EQ(plan.workspace_bytes(), 0u);
  EXPECT_EQ(plan.num_splits, 1);
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.steps[0].kernel, "cpu_reference_forward_bf16_d64_v64_m1n40");
}

TEST(make_plan, depends_on_values_only_so_that_equal_inputs_give_equal_plans) {
  const AttentionProblem problem = dense_problem(1, 8, 2, 7, 5000, 96);
  const Plan a = make_plan("plan", problem, {}, invented_cpu(16));
  const Plan b = make_plan("plan", problem, {}, invented_cpu(16));
  EXPECT_EQ(a.explain(), b.explain());
  EXPECT_EQ(a.workspace_bytes(), b.workspace_bytes());
}

TEST(make_plan, explanation_names_every_part_of_the_plan) {
  AttentionProblem problem = dense_problem(1, 4, 1, 1, 16384, 128);
  problem.causal = Causal::BottomRight;
  const Plan plan = make_plan("plan", problem, {}, invented_cpu(4));
  const std::string text = plan.explain();
  EXPECT_THAT(text, HasSubstr("problem           " + to_string(problem)));
  EXPECT_THAT(text, HasSubstr("device            invented: 4 cores with AVX2"));
  EXPECT_THAT(text, HasSubstr("implementation    cpu_simd"));
  EXPECT_THAT(text,
              HasSubstr("  declined        sm80_forward: runs on an NVIDIA GPU, and the device is a CPU"));
  EXPECT_THAT(text,
              HasSubstr("step 1            cpu_simd_forward_bf16_d128_v128_m8n128_causal: 4 work items"));
  EXPECT_THAT(text, HasSubstr("step 2            cpu_merge_splits: 4 work items"));
  EXPECT_THAT(text, HasSubstr("splits            4 parts of the keys"));
  EXPECT_THAT(text, HasSubstr("  split_out       8.0 KiB"));
  EXPECT_THAT(text, HasSubstr("8.0 MiB if every tensor is read once"));
  EXPECT_THAT(text, HasSubstr("ridge             10.0 FLOP/byte"));
  EXPECT_THAT(text, HasSubstr("bound             memory"));
}

TEST(make_plan, accounting_of_a_gpu_without_kernels_can_still_be_explained) {
  const AttentionProblem problem = dense_problem(1, 1, 1, 4096, 4096, 128);
  const DeviceInfo device = *find_device("a100");
  const std::string text =
      explain_accounting(problem, device, account_forward(problem, device, 128, problem.group()));
  EXPECT_THAT(text, HasSubstr("device            a100: 108 multiprocessors, published peaks"));
  EXPECT_THAT(text, HasSubstr("8.59 GFLOP"));
  EXPECT_THAT(text, HasSubstr("66.0 MiB in one pass, 4.0 MiB if every tensor is read once"));
  EXPECT_THAT(text, HasSubstr("132.0 MiB with S and P materialised"));
  EXPECT_THAT(text, HasSubstr("62.1 materialised"));
  EXPECT_THAT(text, HasSubstr("ridge             153.0 FLOP/byte"));
  EXPECT_THAT(text, HasSubstr("bound             compute"));
}

TEST(make_plan, ragged_accounting_says_that_it_is_an_upper_bound) {
  AttentionProblem problem = dense_problem(4, 2, 2, 10, 10, 64);
  EXPECT_THAT(make_plan("plan", problem, {}, invented_cpu(1)).explain(), Not(HasSubstr("at most")));
  problem.has_seqused_k = true;
  EXPECT_THAT(make_plan("plan", problem, {}, invented_cpu(1)).explain(), HasSubstr("at most"));
}

TEST(explain, units_change_at_their_steps) {
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(decimal_text(999, "FLOP"), "999 FLOP");
  EXPECT_EQ(decimal_text(8.589934592e9, "FLOP"), "8.59 GFLOP");
  EXPECT_EQ(seconds_text(2), "2.00 s");
  EXPECT_EQ(seconds_text(0.0015), "1.50 ms");
  EXPECT_EQ(seconds_text(2.5e-6), "2.50 us");
  EXPECT_EQ(seconds_text(4e-11), "0.04 ns");
}

}  // namespace
}  // namespace onepass
