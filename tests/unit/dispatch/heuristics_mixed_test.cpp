#include "dispatch/heuristics_mixed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/make_plan.h"
#include "plan/mixed_plan.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

/// `long_rows` query rows of each of `num_long` sequences, one of each other, against a cache of pages.
AttentionProblem chunks_and_decodes(std::int64_t num_long, std::int64_t long_rows, std::int64_t num_short,
                                    std::int64_t seqlen_k) {
  const std::int64_t batch = num_long + num_short;
  AttentionProblem p = testing::bf16_problem(batch, 32, 8, long_rows, seqlen_k, 128);
  p.q_layout = SequenceLayout::Packed;
  p.q.batch = p.out.batch = 0;
  p.total_q = num_long * long_rows + num_short;
  p.k_layout = SequenceLayout::Paged;
  p.page_size = 16;
  p.max_pages_per_sequence = seqlen_k / 16;
  p.num_pages = batch * p.max_pages_per_sequence;
  p.total_k = p.num_pages * 16;
  p.has_seqused_k = true;
  p.causal = Causal::BottomRight;
  return p;
}

DeviceInfo h200() { return find_device("h200").value(); }

TEST(heuristics_mixed, prompts_among_decoding_sequences_are_two_launches) {
  // 12 rows of 4 heads are the most that the decode kernel takes.
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(1, 512, 32, 8192), h200()), 12);
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(2, 2048, 126, 8192), h200()), 12);
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(1, 512, 1, 8192), h200()), 12);
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(1, 512, 32, 8192), *find_device("a100")), 16);
}

TEST(heuristics_mixed, what_one_kernel_serves_is_one_launch) {
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(8, 512, 0, 8192), h200()), std::nullopt) << "prompts alone";
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(0, 1, 64, 8192), h200()), std::nullopt) << "decoding alone";
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(1, 16, 64, 8192), h200()), std::nullopt) << "short prompts";
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(1, 400, 64, 400), h200()), std::nullopt) << "few keys";
  AttentionProblem packed_prompts = testing::packed_problem(64, 32, 8, 512, 64 * 50, 512, 64 * 50, 128);
  EXPECT_EQ(choose_few_rows(packed_prompts, h200()), std::nullopt) << "short prompts without a cache";
  packed_prompts.total_k = 64 * 600;
  EXPECT_NE(choose_few_rows(packed_prompts, h200()), std::nullopt);
  AttentionProblem dense = chunks_and_decodes(1, 512, 32, 8192);
  dense.q_layout = SequenceLayout::Dense;
  EXPECT_EQ(choose_few_rows(dense, h200()), std::nullopt);
  EXPECT_EQ(choose_few_rows(chunks_and_decodes(1, 512, 32, 8192), testing::invented_cpu(4)), std::nullopt);
}

TEST(mixed_plan, fills_then_splits_lengths_then_runs_a_kernel_for_each_kind) {
  const AttentionProblem problem = chunks_and_decodes(2, 512, 30, 8192);
  const Plan plan = make_plan("test", problem, {}, h200());
  EXPECT_EQ(plan.implementation, kMixedForward);
  ASSERT_EQ(plan.steps.size(), 2u);
  EXPECT_TRUE(plan.steps[0].kernel.starts_with("fill_rows"));
  EXPECT_TRUE(plan.steps[1].kernel.starts_with("part_lengths"));
  ASSERT_EQ(plan.parts.size(), 2u);
  EXPECT_EQ(plan.parts[0].implementation, "sm90_forward");
  EXPECT_EQ(plan.parts[1].implementation, "sm90_decode");
  EXPECT_EQ(plan.parts[1].problem->seqlen_q, 12);
  for (const Plan& part : plan.parts) {
    EXPECT_TRUE(part.problem->has_seqused_q);
    for (const PlanStep& step : part.steps) EXPECT_FALSE(step.kernel.starts_with("fill_rows"));
    EXPECT_LE(
        part.workspace_bytes(),
        workspace_piece(plan, {static_cast<std::byte*>(nullptr), std::size_t{1} << 40}, kPieceParts).size());
  }
  EXPECT_THAT(plan.explain(),
              ::testing::AllOf(::testing::HasSubstr("sequences of more than 12 query rows: sm90_forward"),
                               ::testing::HasSubstr("sequences of up to 12 query rows: sm90_decode")));
}

TEST(mixed_plan, a_wish_for_splits_or_another_backend_is_one_launch) {
  const AttentionProblem problem = chunks_and_decodes(2, 512, 30, 8192);
  EXPECT_EQ(make_plan("test", problem, {.num_splits = 1}, h200()).implementation, "sm90_forward");
  AttentionProblem in_host_memory = problem;
  in_host_memory.memory = DeviceKind::Cpu;
  EXPECT_EQ(make_plan("test", in_host_memory, {}, testing::invented_cpu(4)).implementation, "cpu_simd");
}

}  // namespace
}  // namespace onepass
