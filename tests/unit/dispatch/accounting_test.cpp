#include "dispatch/accounting.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::dense_problem;
using testing::invented_cpu;
using testing::packed_problem;

constexpr double kMiB = 1024.0 * 1024.0;

// With all query heads of a key head in one tile.
Accounting account(const AttentionProblem& problem, const DeviceInfo& device, std::int64_t tile_m) {
  return account_forward(problem, device, tile_m, problem.group());
}

// Every mask, window and length that is small enough to count by hand.
template <typename Body>
void for_small_bands(const Body& body) {
  for (const MaskKind kind : {MaskKind::None, MaskKind::CausalBottomRight, MaskKind::CausalTopLeft})
    for (Index left = -1; left <= 4; ++left)
      for (Index right = -1; right <= 4; ++right)
        for (Index seqlen_q = 0; seqlen_q <= 7; ++seqlen_q)
          for (Index seqlen_k = 0; seqlen_k <= 7; ++seqlen_k)
            body(key_band(kind, left, right, seqlen_q, seqlen_k), seqlen_q, seqlen_k);
}

TEST(accounting, heads_in_tiles_of_their_own_read_their_keys_each) {
  const AttentionProblem problem = dense_problem(1, 8, 2, 128, 1024, 64);
  const DeviceInfo device = *find_device("h200");
  const double q_and_out = 128.0 * 8 * 128 * 2, keys = 1024.0 * 2 * 128 * 2;
  EXPECT_EQ(account_forward(problem, device, 128, 1).bytes_one_pass, q_and_out + 4 * keys);
  EXPECT_EQ(account_forward(problem, device, 512, 4).bytes_one_pass, q_and_out + keys);
  EXPECT_EQ(account_forward(problem, device, 128, 1).flops, account_forward(problem, device, 512, 4).flops);
}

TEST(accounting, visible_pairs_in_closed_form_equal_a_count_row_by_row) {
  for_small_bands([](KeyBand band, Index seqlen_q, Index seqlen_k) {
    Index pairs = 0;
    for (Index i = 0; i < seqlen_q; ++i) {
      const KeyRange keys = visible_keys(band, seqlen_k, i, i + 1);
      pairs += keys.end - keys.begin;
    }
    ASSERT_EQ(count_visible_pairs(band, seqlen_q, seqlen_k), static_cast<double>(pairs))
        << "band [" << band.lower << ", " << band.upper << "] of " << seqlen_q << " x " << seqlen_k;
  });
}

TEST(accounting, visited_keys_in_closed_form_equal_a_count_tile_by_tile) {
  for (const Index group : {1, 2, 3, 4, 7}) {
    for (const Index tile_m : {1, 2, 3, 4, 8}) {
      for_small_bands([&](KeyBand band, Index seqlen_q, Index seqlen_k) {
        Index visited = 0;
        for (Index row = 0; row < seqlen_q * group; row += tile_m) {
          std::set<Index> queries;
          for (Index r = row; r < min_index(row + tile_m, seqlen_q * group); ++r) queries.insert(r / group);
          const KeyRange keys = visible_keys(band, seqlen_k, *queries.begin(), *queries.rbegin() + 1);
          visited += keys.end - keys.begin;
        }
        ASSERT_EQ(count_visited_keys(band, seqlen_q, seqlen_k, group, tile_m), static_cast<double>(visited))
            << "band [" << band.lower << ", " << band.upper << "] of " << seqlen_q << " x " << seqlen_k
            << ", group " << group << ", tile_m " << tile_m;
      });
    }
  }
}

TEST(accounting, one_head_of_4096_on_an_a100_has_the_published_check_values) {
  const AttentionProblem problem = dense_problem(1, 1, 1, 4096, 4096, 128);
  const Accounting a = account(problem, *find_device("a100"), 128);
  EXPECT_EQ(a.flops, 4.0 * 4096 * 4096 * 128);
  EXPECT_NEAR(a.flops / 1e9, 8.6, 0.05);
  EXPECT_EQ(a.bytes_materialised, 132 * kMiB);
  EXPECT_NEAR(a.intensity_materialised, 62, 0.5);
  EXPECT_EQ(a.bytes_one_pass, 66 * kMiB);
  EXPECT_EQ(a.bytes_lower_bound, 4 * kMiB);
  EXPECT_NEAR(a.ridge, 153.0, 0.1);  // 312e12 / 2039e9; 156 with the memory rounded to 2 TB/s
  EXPECT_GT(a.seconds_compute, a.seconds_memory);
  EXPECT_EQ(a.seconds_lower_bound, a.seconds_compute);
}

TEST(accounting, materialised_scores_of_4_x_16_heads_of_4096_are_64_times_q_k_v_o) {
  const AttentionProblem problem = dense_problem(4, 16, 16, 4096, 4096, 64, DType::F16);
  const Accounting a = account(problem, *find_device("a100"), 128);
  const double scores = a.bytes_materialised - a.bytes_lower_bound;
  EXPECT_EQ(scores / a.bytes_lower_bound, 64.0);
  EXPECT_EQ(scores / 2, 4.0 * 1024 * kMiB);  // 4 GB written and as much read
}

TEST(accounting, decoding_reads_keys_and_values_once_and_has_g_flops_per_byte) {
  const AttentionProblem problem = dense_problem(3, 32, 8, 1, 32768, 128);
  const Accounting a = account(problem, *find_device("h200"), 16);
  const double kv_bytes = 3 * 8 * (2.0 * 32768 * 128 * 2);
  EXPECT_NEAR(a.bytes_lower_bound, kv_bytes, 1e-3 * kv_bytes);
  EXPECT_EQ(a.bytes_one_pass, a.bytes_lower_bound);
  EXPECT_NEAR(a.intensity_one_pass, 4, 0.01);  // g = 32 / 8
  EXPECT_EQ(a.seconds_lower_bound, a.seconds_memory);
}

TEST(accounting, causal_halves_the_flops) {
  AttentionProblem problem = dense_problem(2, 4, 4, 1000, 1000, 64);
  const double full = account(problem, invented_cpu(1), 64).flops;
  problem.causal = Causal::BottomRight;
  const Accounting causal = account(problem, invented_cpu(1), 64);
  EXPECT_EQ(causal.flops, full * 1001.0 / 2000.0);
}

TEST(accounting, unequal_head_dims_count_d_plus_dv) {
  AttentionProblem problem = dense_problem(1, 1, 1, 10, 20, 192, DType::F32);
  problem.head_dim_v = 128;
  const Accounting a = account(problem, invented_cpu(1), 64);
  EXPECT_EQ(a.flops, 2.0 * 10 * 20 * (192 + 128));
  EXPECT_EQ(a.bytes_lower_bound, 4.0 * (10 + 20) * (192 + 128));
}

TEST(accounting, a_window_reads_only_the_keys_it_leaves) {
  AttentionProblem problem = dense_problem(1, 1, 1, 1, 32768, 128);
  problem.window_left = 127;
  problem.window_right = 0;
  const Accounting a = account(problem, invented_cpu(1), 64);
  EXPECT_EQ(a.bytes_lower_bound, 2.0 * (2 * 128 + 128 * 2 * 128));
}

TEST(accounting, ridge_takes_the_peak_of_the_inputs_type) {
  const DeviceInfo device = *find_device("a100");
  EXPECT_NEAR(account(dense_problem(1, 1, 1, 8, 8, 8, DType::F32), device, 64).ridge, 19.5e12 / 2039e9, 1e-9);
  EXPECT_NEAR(account(dense_problem(1, 1, 1, 8, 8, 8, DType::F16), device, 64).ridge, 312e12 / 2039e9, 1e-9);
}

TEST(accounting, eight_bit_keys_halve_their_bytes) {
  AttentionProblem problem = dense_problem(1, 1, 1, 1, 1000, 64);
  const double wide = account(problem, invented_cpu(1), 64).bytes_lower_bound;
  problem.kv_dtype = DType::F8E4M3;
  EXPECT_EQ(wide - account(problem, invented_cpu(1), 64).bytes_lower_bound, 1000.0 * 2 * 64);
}

TEST(accounting, no_rows_and_no_keys_cost_nothing_and_divide_by_nothing) {
  const Accounting a = account(dense_problem(2, 4, 2, 0, 0, 64), invented_cpu(1), 64);
  EXPECT_EQ(a.flops, 0);
  EXPECT_EQ(a.bytes_materialised, 0);
  EXPECT_EQ(a.intensity_one_pass, 0);
  EXPECT_EQ(a.seconds_lower_bound, 0);
}

// What one ragged batch costs when its lengths are known.
struct Lengths {
  std::vector<Index> q, k;
};

TEST(accounting, ragged_batches_never_cost_more_than_the_upper_bound) {
  const std::vector<Lengths> batches = {{{3, 5, 2}, {3, 5, 2}}, {{4, 1, 1}, {12, 12, 6}},
                                        {{1, 1, 9}, {9, 9, 9}}, {{0, 7, 1}, {7, 0, 1}},
                                        {{8, 8, 8}, {8, 8, 8}}, {{2, 6}, {1, 11}}};
  for (const Lengths& lengths : batches) {
    for (const Causal causal : {Causal::None, Causal::BottomRight, Causal::TopLeft}) {
      for (const auto& [left, right] : {std::pair{-1, -1}, {2, -1}, {-1, 1}, {2, 0}, {0, 0}}) {
        const auto batch = static_cast<Index>(lengths.q.size());
        Index total_q = 0, total_k = 0, max_q = 0, max_k = 0;
        double pairs = 0, visited = 0;
        for (std::size_t b = 0; b < lengths.q.size(); ++b) {
          const Index seqlen_q = lengths.q[b], seqlen_k = lengths.k[b];
          const KeyBand band = key_band(mask_kind(causal), left, right, seqlen_q, seqlen_k);
          pairs += count_visible_pairs(band, seqlen_q, seqlen_k);
          visited += count_visited_keys(band, seqlen_q, seqlen_k, 2, 4);
          total_q += seqlen_q;
          total_k += seqlen_k;
          max_q = std::max(max_q, seqlen_q);
          max_k = std::max(max_k, seqlen_k);
        }
        AttentionProblem problem = packed_problem(batch, 2, 1, max_q, total_q, max_k, total_k, 8);
        problem.causal = causal;
        problem.window_left = left;
        problem.window_right = right;
        const Accounting a = account(problem, invented_cpu(1), 4);
        const double q_and_out = 2.0 * 2 * 16 * static_cast<double>(total_q);
        EXPECT_GE(a.flops, 2 * 2 * 16 * pairs);
        EXPECT_GE(a.bytes_one_pass, q_and_out + 2 * 16 * visited);
        EXPECT_LE(a.bytes_lower_bound, q_and_out + 2.0 * 16 * static_cast<double>(total_k));
      }
    }
  }
}

TEST(accounting, full_packed_batches_cost_the_same_flops_as_dense_ones) {
  AttentionProblem dense = dense_problem(4, 8, 2, 100, 100, 64);
  AttentionProblem packed = packed_problem(4, 8, 2, 100, 400, 100, 400, 64);
  dense.causal = packed.causal = Causal::BottomRight;
  const Accounting a = account(dense, invented_cpu(1), 64);
  const Accounting b = account(packed, invented_cpu(1), 64);
  EXPECT_EQ(a.flops, b.flops);
  EXPECT_EQ(a.bytes_materialised, b.bytes_materialised);
  EXPECT_EQ(a.bytes_lower_bound, b.bytes_lower_bound);
}

}  // namespace
}  // namespace onepass
