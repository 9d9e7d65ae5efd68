#include "dispatch/heuristics_forward.h"

#include <gtest/gtest.h>

#include "dispatch/kernel_name.h"
#include "plan/make_plan.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::dense_problem;
using testing::invented_cpu;
using testing::packed_problem;

std::string kernel_of(const AttentionProblem& problem, const DeviceInfo& device) {
  return make_plan("plan", problem, {}, device).steps.front().kernel;
}

TEST(heuristics_forward, long_causal_prefill_on_two_cores_picks_the_largest_query_tile) {
  AttentionProblem problem = dense_problem(1, 16, 16, 4096, 4096, 128);
  problem.causal = Causal::BottomRight;
  EXPECT_EQ(kernel_of(problem, invented_cpu(2)), "cpu_simd_forward_bf16_d128_v128_m512n128_causal");
}

TEST(heuristics_forward, many_cores_pick_smaller_query_tiles_before_they_idle) {
  const AttentionProblem problem = dense_problem(1, 4, 4, 2048, 2048, 64, DType::F32);
  EXPECT_EQ(kernel_of(problem, invented_cpu(4)), "cpu_simd_forward_f32_d64_v64_m512n128");
  EXPECT_EQ(kernel_of(problem, invented_cpu(64)), "cpu_simd_forward_f32_d64_v64_m64n128");
}

TEST(heuristics_forward, wide_heads_pick_short_key_tiles) {
  AttentionProblem problem = dense_problem(1, 16, 1, 512, 512, 576);
  problem.head_dim_v = 512;
  EXPECT_EQ(choose_cpu_forward(problem, invented_cpu(2), 0, 0).tile_n, 64);
}

TEST(heuristics_forward, decoding_packs_the_group_into_one_small_tile) {
  EXPECT_EQ(choose_cpu_forward(dense_problem(1, 32, 8, 1, 8192, 128), invented_cpu(2), 0, 0).tile_m, 8);
  EXPECT_EQ(choose_cpu_forward(dense_problem(1, 32, 1, 1, 8192, 128), invented_cpu(2), 0, 0).tile_m, 32);
}

TEST(heuristics_forward, decoding_takes_all_key_heads_in_one_item_and_splits_the_keys_for_the_threads) {
  const auto choose = [](std::int64_t batch, std::int64_t seqlen_k, int threads, int splits = 0) {
    const AttentionProblem problem = dense_problem(batch, 32, 8, 1, seqlen_k, 128);
    return choose_cpu_forward(problem, invented_cpu(threads), 0, splits);
  };
  EXPECT_EQ(choose(1, 32768, 1).item_heads, 8);
  EXPECT_EQ(choose(1, 32768, 1).num_splits, 1);
  EXPECT_EQ(choose(1, 32768, 2).item_heads, 8);
  EXPECT_EQ(choose(1, 32768, 2).num_splits, 8) << "four items for each thread";
  EXPECT_EQ(choose(8, 32768, 2).item_heads, 8);
  EXPECT_EQ(choose(8, 32768, 2).num_splits, 1);
  EXPECT_EQ(choose(1, 32768, 64).item_heads, 2) << "64 parts of 512 keys, four of two heads each";
  EXPECT_EQ(choose(1, 32768, 64).num_splits, 64);
  EXPECT_EQ(choose(1, 256, 2).item_heads, 1) << "too few keys to split";
  EXPECT_EQ(choose(1, 32768, 2, 1).item_heads, 1) << "one part was asked for";
  EXPECT_EQ(choose(1, 32768, 2, 4).item_heads, 4);
}

TEST(heuristics_forward, heads_of_an_item_stay_in_cache_and_are_one_where_some_sequence_has_many_rows) {
  const auto heads = [](std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen_q, std::int64_t dim) {
    return choose_cpu_forward(dense_problem(8, heads_q, heads_k, seqlen_q, 4096, dim), invented_cpu(1), 0, 0)
        .item_heads;
  };
  EXPECT_EQ(heads(128, 128, 1, 128), 64) << "64 rows";
  EXPECT_EQ(heads(128, 16, 1, 128), 8) << "of eight heads each";
  EXPECT_EQ(heads(128, 128, 1, 256), 42) << "128 KiB of Q, O and sums";
  EXPECT_EQ(heads(32, 8, 4, 128), 4) << "16 rows a head";
  EXPECT_EQ(heads(32, 8, 5, 128), 1);
}

TEST(heuristics_forward, decoding_with_one_head_splits_the_keys) {
  EXPECT_EQ(choose_cpu_forward(dense_problem(1, 8, 1, 1, 32768, 128), invented_cpu(2), 0, 0).num_splits, 2);
}

TEST(heuristics_forward, parts_keep_at_least_512_keys) {
  EXPECT_EQ(choose_cpu_forward(dense_problem(1, 8, 1, 1, 1023, 128), invented_cpu(64), 0, 0).num_splits, 1);
  EXPECT_EQ(choose_cpu_forward(dense_problem(1, 8, 1, 1, 1024, 128), invented_cpu(64), 0, 0).num_splits, 2);
  EXPECT_EQ(choose_cpu_forward(dense_problem(1, 8, 1, 1, 4096, 128), invented_cpu(64), 0, 0).num_splits, 8);
}

TEST(heuristics_forward, one_thread_never_splits) {
  EXPECT_EQ(choose_cpu_forward(dense_problem(1, 8, 1, 1, 1 << 20, 128), invented_cpu(1), 0, 0).num_splits, 1);
  EXPECT_EQ(choose_cpu_forward(dense_problem(1, 8, 1, 1, 1 << 20, 128), invented_cpu(64), 1, 0).num_splits,
            1);
}

TEST(heuristics_forward, requests_are_kept_up_to_the_work_there_is) {
  const AttentionProblem problem = dense_problem(1, 1, 1, 1, 1000, 64);
  const CpuForwardConfig asked = choose_cpu_forward(problem, invented_cpu(2), 5, 3);
  EXPECT_EQ(asked.num_threads, 3) << "three parts are three items";
  EXPECT_EQ(asked.num_splits, 3);
  EXPECT_EQ(choose_cpu_forward(problem, invented_cpu(2), 0, 1000).num_splits, 8)
      << "1000 keys in tiles of 128";
  const CpuForwardConfig oversubscribed =
      choose_cpu_forward(dense_problem(4, 8, 8, 512, 512, 64), invented_cpu(2), 7, 1);
  EXPECT_EQ(oversubscribed.num_threads, 7);
}

TEST(heuristics_forward, empty_problems_have_a_valid_choice) {
  for (const auto& problem : {dense_problem(0, 4, 4, 5, 5, 64), dense_problem(2, 4, 4, 0, 5, 64),
                              dense_problem(2, 4, 4, 5, 0, 64), packed_problem(0, 4, 4, 0, 0, 0, 0, 64)}) {
    const CpuForwardConfig config = choose_cpu_forward(problem, invented_cpu(8), 0, 0);
    EXPECT_GT(config.tile_m, 0);
    EXPECT_GT(config.tile_n, 0);
    EXPECT_EQ(config.num_splits, 1);
    EXPECT_GE(config.num_threads, 1);
  }
}

TEST(heuristics_forward, tiles_of_packed_queries_are_bounded_by_total_and_by_length) {
  // 100 sequences, one of 1000 rows, the others of 1: 1099 rows in tiles of 64, each sequence rounds up once.
  EXPECT_EQ(count_query_tiles(packed_problem(100, 1, 1, 1000, 1099, 1000, 1099, 64), 64), 18 + 100);
  EXPECT_EQ(count_query_tiles(packed_problem(4, 2, 2, 64, 256, 64, 256, 64), 64), 2 * 4);
  EXPECT_EQ(count_query_tiles(dense_problem(3, 8, 2, 100, 7, 64), 64), 3 * 2 * 7) << "400 packed rows";
}

TEST(heuristics_forward, kernel_names_carry_types_sizes_and_features) {
  AttentionProblem problem = dense_problem(1, 4, 2, 8, 8, 192);
  problem.head_dim_v = 128;
  problem.kv_dtype = DType::F8E4M3;
  problem.k_layout = SequenceLayout::Paged;
  problem.causal = Causal::TopLeft;
  problem.window_left = 5;
  problem.softcap = 30;
  problem.has_alibi = problem.has_bias = problem.has_sinks = true;
  EXPECT_EQ(
      forward_kernel_name("cpu_simd_forward", problem, 64, 128),
      "cpu_simd_forward_bf16_kvf8e4m3_d192_v128_m64n128_paged_causaltl_window_softcap_alibi_bias_sinks");
}

}  // namespace
}  // namespace onepass
