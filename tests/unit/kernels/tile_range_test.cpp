#include "backends/cuda/kernels/common/tile_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace onepass {
namespace {

// NVRTC and g++ must agree; constant evaluation also shows that nothing in it overflows.
static_assert(visible_keys(key_band(MaskKind::CausalBottomRight, -1, -1, 2, 5), 5, 0, 1).end == 4);
static_assert(visible_keys(key_band(MaskKind::CausalTopLeft, -1, -1, 2, 5), 5, 0, 1).end == 1);
static_assert(visible_keys(key_band(MaskKind::None, Index{1} << 40, Index{1} << 40, 1, 9), 9, 0, 1).end == 9);
static_assert(tile_range(key_band(MaskKind::None, -1, -1, 64, 130), 130, 0, 64, 64).n_block_full_max == 2);

struct Case {
  MaskKind kind;
  Index window_left, window_right, seqlen_q, seqlen_k;

  KeyBand band() const { return key_band(kind, window_left, window_right, seqlen_q, seqlen_k); }

  // spec.md section 2, term by term.
  bool allowed(Index i, Index j) const {
    const Index off = seqlen_k - seqlen_q;
    if (j < 0 || j >= seqlen_k) return false;
    if (kind == MaskKind::CausalBottomRight && !(j <= i + off)) return false;
    if (kind == MaskKind::CausalTopLeft && !(j <= i)) return false;
    if (window_left != -1 && !(i + off - window_left <= j)) return false;
    if (window_right != -1 && !(j <= i + off + window_right)) return false;
    return true;
  }

  std::string text() const {
    return "kind " + std::to_string(static_cast<int>(kind)) + " window (" + std::to_string(window_left) +
           ", " + std::to_string(window_right) + ") seqlen " + std::to_string(seqlen_q) + " x " +
           std::to_string(seqlen_k);
  }
};

std::vector<Case> small_cases() {
  std::vector<Case> cases;
  for (const MaskKind kind : {MaskKind::None, MaskKind::CausalBottomRight, MaskKind::CausalTopLeft})
    for (Index left = -1; left <= 5; ++left)
      for (Index right = -1; right <= 5; ++right)
        for (Index seqlen_q = 0; seqlen_q <= 8; ++seqlen_q)
          for (Index seqlen_k = 0; seqlen_k <= 8; ++seqlen_k)
            cases.push_back({kind, left, right, seqlen_q, seqlen_k});
  return cases;
}

TEST(tile_range, visible_keys_of_a_row_are_exactly_what_the_formula_allows) {
  for (const Case& c : small_cases()) {
    for (Index i = 0; i < c.seqlen_q; ++i) {
      const KeyRange keys = visible_keys(c.band(), c.seqlen_k, i, i + 1);
      for (Index j = 0; j < c.seqlen_k; ++j) {
        ASSERT_EQ(keys.begin <= j && j < keys.end, c.allowed(i, j))
            << c.text() << " row " << i << " key " << j;
      }
      ASSERT_TRUE(0 <= keys.begin && keys.begin <= keys.end && keys.end <= c.seqlen_k) << c.text();
    }
  }
}

TEST(tile_range, visible_keys_of_a_row_block_are_the_union_of_its_rows) {
  for (const Case& c : small_cases()) {
    for (Index begin = 0; begin < c.seqlen_q; ++begin) {
      for (Index end = begin + 1; end <= c.seqlen_q; ++end) {
        const KeyRange keys = visible_keys(c.band(), c.seqlen_k, begin, end);
        for (Index j = 0; j < c.seqlen_k; ++j) {
          bool any = false;
          for (Index i = begin; i < end; ++i) any = any || c.allowed(i, j);
          ASSERT_EQ(keys.begin <= j && j < keys.end, any)
              << c.text() << " rows [" << begin << ", " << end << ") key " << j;
        }
      }
    }
  }
}

// For each block of keys: does a row of the block of queries see any of its keys, do all rows see all tile_n?
std::pair<bool, bool> any_and_all(const Case& c, Index row_begin, Index row_end, Index n_block,
                                  Index tile_n) {
  bool any = false, all = true;
  for (Index i = row_begin; i < row_end; ++i) {
    for (Index j = n_block * tile_n; j < (n_block + 1) * tile_n; ++j) {
      any = any || c.allowed(i, j);
      all = all && c.allowed(i, j);
    }
  }
  return {any, all};
}

TEST(tile_range, visits_exactly_the_blocks_with_a_visible_key_and_masks_exactly_the_partial_ones) {
  for (const Case& c : small_cases()) {
    for (Index tile_m = 1; tile_m <= 4; ++tile_m) {
      for (Index tile_n = 1; tile_n <= 4; ++tile_n) {
        for (Index row_begin = 0; row_begin < c.seqlen_q; row_begin += tile_m) {
          const Index row_end = min_index(c.seqlen_q, row_begin + tile_m);
          const TileRange r = tile_range(c.band(), c.seqlen_k, row_begin, row_end, tile_n);
          for (Index n = 0; n * tile_n < c.seqlen_k + tile_n; ++n) {
            const auto [any, all] = any_and_all(c, row_begin, row_end, n, tile_n);
            ASSERT_EQ(r.n_block_min <= n && n < r.n_block_max, any)
                << c.text() << " rows from " << row_begin << " tile " << tile_m << " x " << tile_n
                << " block " << n;
            ASSERT_EQ(r.n_block_full_min <= n && n < r.n_block_full_max, all)
                << c.text() << " rows from " << row_begin << " tile " << tile_m << " x " << tile_n
                << " block " << n;
          }
          ASSERT_LE(r.n_block_min, r.n_block_full_min) << c.text();
          ASSERT_LE(r.n_block_full_min, r.n_block_full_max) << c.text();
          ASSERT_LE(r.n_block_full_max, r.n_block_max) << c.text();
        }
      }
    }
  }
}

struct BlockCounts {
  Index visited = 0, masked = 0;
  bool operator==(const BlockCounts&) const = default;
};

BlockCounts count_blocks(const Case& c, Index tile) {
  BlockCounts counts;
  for (Index row = 0; row < c.seqlen_q; row += tile) {
    const TileRange r = tile_range(c.band(), c.seqlen_k, row, min_index(c.seqlen_q, row + tile), tile);
    counts.visited += r.n_block_max - r.n_block_min;
    counts.masked += (r.n_block_max - r.n_block_min) - (r.n_block_full_max - r.n_block_full_min);
  }
  return counts;
}

TEST(tile_range, golden_case_c_chunked_prefill_counts_the_keys_of_every_row) {
  const std::vector<Index> cu_seqlens_q = {0, 4, 5, 6}, seqused_k = {12, 12, 6};
  std::vector<Index> counts;
  for (std::size_t b = 0; b < seqused_k.size(); ++b) {
    const Index seqlen_q = cu_seqlens_q[b + 1] - cu_seqlens_q[b];
    const KeyBand band = key_band(MaskKind::CausalBottomRight, -1, -1, seqlen_q, seqused_k[b]);
    for (Index i = 0; i < seqlen_q; ++i) {
      const KeyRange keys = visible_keys(band, seqused_k[b], i, i + 1);
      EXPECT_EQ(keys.begin, 0);
      counts.push_back(keys.end - keys.begin);
    }
  }
  EXPECT_EQ(counts, (std::vector<Index>{9, 10, 11, 12, 12, 6}));
}

TEST(tile_range, golden_case_e_causal_visits_10_of_16_blocks_and_masks_4) {
  EXPECT_EQ(count_blocks({MaskKind::CausalBottomRight, -1, -1, 256, 256}, 64), (BlockCounts{10, 4}));
  EXPECT_EQ(count_blocks({MaskKind::CausalTopLeft, -1, -1, 256, 256}, 64), (BlockCounts{10, 4}));
}

TEST(tile_range, golden_case_e_window_visits_26_of_64_blocks) {
  const Case c{MaskKind::None, 191, 0, 512, 512};
  EXPECT_EQ(count_blocks(c, 64).visited, 26);
  for (Index row_block = 3; row_block < 8; ++row_block) {
    const TileRange r = tile_range(c.band(), 512, row_block * 64, (row_block + 1) * 64, 64);
    EXPECT_EQ(r.n_block_max - r.n_block_min, 4);
    EXPECT_EQ(r.n_block_full_min, r.n_block_min + 1) << "the leftmost block is masked";
    EXPECT_EQ(r.n_block_full_max, r.n_block_max - 1) << "the diagonal block is masked";
  }
}

TEST(tile_range, top_left_diagonal_with_a_left_window_past_it_sees_nothing_in_any_block) {
  // Sk - Sq - L = 3 > 0: every row's window starts behind its diagonal.
  const Case c{MaskKind::CausalTopLeft, 1, -1, 4, 8};
  EXPECT_EQ(count_blocks(c, 2).visited, 0);
}

TEST(tile_range, lengths_of_a_trillion_stay_exact) {
  const Index length = Index{1} << 40;
  const KeyBand band = key_band(MaskKind::CausalBottomRight, length, -1, length, length);
  const TileRange r = tile_range(band, length, length - 64, length, 64);
  EXPECT_EQ(r.n_block_min, 0);
  EXPECT_EQ(r.n_block_max, length / 64);
  EXPECT_EQ(r.n_block_full_max, length / 64 - 1);
}

// sm90/forward.cuh counts in 32 bits and cuts a band at lengths that no tensor of its kernels passes.
TEST(tile_range, a_cut_band_in_32_bits_gives_the_same_keys_and_blocks_up_to_the_longest_rows) {
  constexpr Index kMost = (1 << 30) - 1024;
  int compared = 0;
  for (const MaskKind kind : {MaskKind::None, MaskKind::CausalBottomRight, MaskKind::CausalTopLeft}) {
    for (const Index left : {Index{-1}, Index{0}, Index{300}, kMost, Index{1} << 40}) {
      for (const Index right : {Index{-1}, Index{0}, Index{300}, kMost, Index{1} << 40}) {
        for (const Index seqlen_q : {Index{1}, Index{500}, kMost}) {
          for (const Index seqlen_k : {Index{0}, Index{1}, Index{500}, kMost}) {
            const Case c{kind, left, right, seqlen_q, seqlen_k};
            const KeyBand band = c.band();
            const BasicKeyBand<int> cut{static_cast<int>(larger(band.lower, -kMost)),
                                        static_cast<int>(smaller(larger(band.upper, -kMost), kMost))};
            for (const Index row : {Index{0}, seqlen_q / 2, seqlen_q - 1}) {
              const Index row_end = smaller(row + 192, seqlen_q);
              const auto keys = visible_keys(band, seqlen_k, row, row_end);
              const auto cut_keys = visible_keys(cut, static_cast<int>(seqlen_k), static_cast<int>(row),
                                                 static_cast<int>(row_end));
              ASSERT_EQ(cut_keys.begin, keys.begin) << c.text() << " row " << row;
              ASSERT_EQ(cut_keys.end, keys.end) << c.text() << " row " << row;
              const auto range = tile_range(band, seqlen_k, row, row_end, 128);
              const auto cut_range = tile_range(cut, static_cast<int>(seqlen_k), static_cast<int>(row),
                                                static_cast<int>(row_end), 128);
              ASSERT_EQ(cut_range.n_block_min, range.n_block_min) << c.text() << " row " << row;
              ASSERT_EQ(cut_range.n_block_max, range.n_block_max) << c.text() << " row " << row;
              ASSERT_EQ(cut_range.n_block_full_min, range.n_block_full_min) << c.text() << " row " << row;
              ASSERT_EQ(cut_range.n_block_full_max, range.n_block_full_max) << c.text() << " row " << row;
              ++compared;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 3 * 5 * 5 * 3 * 4 * 3);
}

TEST(tile_range, header_includes_nothing_of_the_host_so_that_nvrtc_can_compile_it) {
  std::ifstream header(ONEPASS_SOURCE_DIR "/src/backends/cuda/kernels/common/tile_range.h");
  ASSERT_TRUE(header.is_open());
  std::size_t lines = 0;
  for (std::string line; std::getline(header, line); ++lines) {
    const bool ours = line == "#include \"common/host_device.h\"";
    EXPECT_TRUE(ours || line.find("#include") == std::string::npos) << line;
    EXPECT_EQ(line.find("std::"), std::string::npos) << line;
  }
  EXPECT_GT(lines, 50u);
}

TEST(tile_range, query_blocks_visit_the_keys_that_their_own_range_has) {
  for (const Case& c : small_cases()) {
    for (const Index tile_m : {1, 3}) {
      for (const Index tile_n : {2, 3}) {
        for (Index n = 0; n * tile_n < c.seqlen_k; ++n) {
          const auto blocks = query_blocks(c.band(), c.seqlen_q, n * tile_n,
                                           std::min(n * tile_n + tile_n, c.seqlen_k), tile_m);
          for (Index m = 0; m * tile_m < c.seqlen_q; ++m) {
            const TileRange range = tile_range(c.band(), c.seqlen_k, m * tile_m,
                                               std::min(m * tile_m + tile_m, c.seqlen_q), tile_n);
            ASSERT_EQ(blocks.m_block_min <= m && m < blocks.m_block_max,
                      range.n_block_min <= n && n < range.n_block_max)
                << c.text() << " tiles " << tile_m << " x " << tile_n << " block " << m << ", " << n;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace onepass
