#include "dispatch/heuristics_mixed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "plan/make_plan.h"
#include "plan/mixed_plan.h"
#include "plan/planned_kernel.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

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

TEST(heuristics_mixed, a_prompt_among_decoding_sequences_is_two_launches) {
  // 2 rows of 4 heads fill the tile that one row has.
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(1, 512, 32, 8192), h200()), ElementsAre(512, 2));
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(1, 512, 1, 8192), h200()), ElementsAre(512, 2));
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(1, 512, 32, 8192), *find_device("a100")),
              ElementsAre(512, 16));
}

TEST(heuristics_mixed, where_others_may_have_more_rows_those_of_one_tile_have_their_own_launch) {
  // 12 rows of 4 heads are the most that the decode kernel takes, 4 its widest tile.
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(2, 2048, 126, 8192), h200()), ElementsAre(2048, 12, 4));
  AttentionProblem speculative = chunks_and_decodes(1, 512, 32, 8192);
  speculative.total_q = 512 + 32 * 5;
  EXPECT_THAT(choose_launch_rows(speculative, h200()), ElementsAre(512, 12, 4));
  AttentionProblem loose = speculative;
  loose.seqlen_q = 2048;  // a bound: the rows of all are fewer
  EXPECT_THAT(choose_launch_rows(loose, h200()), ElementsAre(2048, 12, 4));
  speculative.num_heads_q = 8 * 12;
  EXPECT_THAT(choose_launch_rows(speculative, h200()), ElementsAre(512, 4, 1)) << "12 rows of a tile of 16";
  speculative.num_heads_q = 8 * 20;
  EXPECT_THAT(choose_launch_rows(speculative, h200()), ElementsAre(512, 2, 1)) << "two tiles for one query";
  EXPECT_THAT(choose_launch_rows(speculative, *find_device("a100")), ElementsAre(512, 3));
}

TEST(heuristics_mixed, few_rows_of_a_batch_invariant_call_depend_on_no_length) {
  AttentionProblem problem = chunks_and_decodes(1, 512, 32, 8192);
  problem.batch_invariant = true;
  EXPECT_THAT(choose_launch_rows(problem, h200()), ElementsAre(512, 12));
  problem.total_q = 20000;
  EXPECT_THAT(choose_launch_rows(problem, h200()), ElementsAre(512, 12));
}

TEST(heuristics_mixed, what_one_kernel_serves_is_one_launch) {
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(8, 512, 0, 8192), h200()), IsEmpty()) << "prompts alone";
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(0, 1, 64, 8192), h200()), IsEmpty()) << "decoding alone";
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(1, 16, 64, 8192), h200()), IsEmpty()) << "short prompts";
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(1, 400, 64, 400), h200()), IsEmpty()) << "few keys";
  AttentionProblem packed_prompts = testing::packed_problem(64, 32, 8, 512, 64 * 50, 512, 64 * 50, 128);
  EXPECT_THAT(choose_launch_rows(packed_prompts, h200()), IsEmpty()) << "short prompts without a cache";
  packed_prompts.total_k = 64 * 600;
  EXPECT_THAT(choose_launch_rows(packed_prompts, h200()), Not(IsEmpty()));
  AttentionProblem dense = chunks_and_decodes(1, 512, 32, 8192);
  dense.q_layout = SequenceLayout::Dense;
  EXPECT_THAT(choose_launch_rows(dense, h200()), IsEmpty());
  EXPECT_THAT(choose_launch_rows(chunks_and_decodes(1, 512, 32, 8192), testing::invented_cpu(4)), IsEmpty());
}

/// A call over some sequences of the batch alone.
AttentionProblem alone(AttentionProblem problem, std::int64_t batch, std::int64_t rows) {
  problem.batch = batch;
  problem.seqlen_q = rows;
  problem.total_q = batch * rows;
  return problem;
}

void expect_the_kernels_of(const Plan& part, const Plan& separate) {
  ASSERT_EQ(separate.steps.size(), part.steps.size() + 1) << "which fills rows of no sequence";
  for (std::size_t i = 0; i < part.steps.size(); ++i) {
    const PlanStep &one = part.steps[i], &other = separate.steps[i + 1];
    EXPECT_EQ(one.kernel, other.kernel);
    EXPECT_EQ(one.gpu_kernel->decode_order.team, other.gpu_kernel->decode_order.team);
    EXPECT_EQ(one.gpu_kernel->decode_order.rounds, other.gpu_kernel->decode_order.rounds);
    EXPECT_EQ(one.gpu_kernel->decode_order.num_shares, other.gpu_kernel->decode_order.num_shares);
  }
  EXPECT_EQ(part.num_splits, separate.num_splits);
}

TEST(mixed_plan, parts_take_the_kernels_of_separate_calls) {
  for (const auto& [rows, others, keys] :
       {std::tuple{512, 31, 8192}, {2048, 63, 4096}, {512, 7, 32768}, {256, 15, 1024}}) {
    SCOPED_TRACE(others);
    const AttentionProblem problem = chunks_and_decodes(1, rows, others, keys);
    const Plan plan = make_plan("test", problem, {}, h200());
    ASSERT_EQ(plan.parts.size(), 2u);
    expect_the_kernels_of(plan.parts[0], make_plan("test", alone(problem, 1, rows), {}, h200()));
    expect_the_kernels_of(plan.parts[1], make_plan("test", alone(problem, others, 1), {}, h200()));
  }
  const AttentionProblem problem = chunks_and_decodes(4, 512, 124, 4096);
  const Plan plan = make_plan("test", problem, {}, h200());
  ASSERT_EQ(plan.parts.size(), 3u);
  expect_the_kernels_of(plan.parts[0], make_plan("test", alone(problem, 4, 512), {}, h200()));
  expect_the_kernels_of(plan.parts[2], make_plan("test", alone(problem, 124, 4), {}, h200()));
  EXPECT_EQ(plan.parts[2].steps[0].gpu_kernel->decode_order,
            make_plan("test", alone(problem, 128, 1), {}, h200()).steps[1].gpu_kernel->decode_order)
      << "no block waits for rows that are not there";
}

TEST(mixed_plan, fills_then_splits_lengths_then_runs_a_kernel_for_each_kind) {
  const AttentionProblem problem = chunks_and_decodes(2, 512, 30, 8192);
  const Plan plan = make_plan("test", problem, {}, h200());
  EXPECT_EQ(plan.implementation, kMixedForward);
  ASSERT_EQ(plan.steps.size(), 2u);
  EXPECT_TRUE(plan.steps[0].kernel.starts_with("fill_rows"));
  EXPECT_TRUE(plan.steps[1].kernel.starts_with("part_lengths"));
  ASSERT_EQ(plan.parts.size(), 3u);
  EXPECT_EQ(plan.parts[0].implementation, "sm90_forward");
  EXPECT_EQ(plan.parts[1].implementation, "sm90_decode");
  EXPECT_EQ(plan.parts[2].implementation, "sm90_decode");
  EXPECT_EQ(plan.parts[1].problem->seqlen_q, 12);
  EXPECT_EQ(plan.parts[2].problem->seqlen_q, 4);
  for (const Plan& part : plan.parts) {
    EXPECT_TRUE(part.problem->has_seqused_q);
    for (const PlanStep& step : part.steps) EXPECT_FALSE(step.kernel.starts_with("fill_rows"));
    EXPECT_LE(
        part.workspace_bytes(),
        workspace_piece(plan, {static_cast<std::byte*>(nullptr), std::size_t{1} << 40}, kPieceParts).size());
  }
  EXPECT_THAT(plan.explain(),
              ::testing::AllOf(::testing::HasSubstr("sequences of more than 12 query rows: sm90_forward"),
                               ::testing::HasSubstr("sequences of 5 to 12 query rows: sm90_decode"),
                               ::testing::HasSubstr("sequences of up to 4 query rows: sm90_decode")));
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
