// What sm90_forward does by warps alone, on the emulator: scores that are computed once more from swizzled
// tiles, and the softmax that leaves maxima out.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "sm90/softmax.cuh"
#include "sm90/warp_scores.cuh"
#include "tests/emulator/block.h"

namespace onepass::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int lane() { return static_cast<int>(threadIdx.x); }

// ---- scores

constexpr int kColumns = 128, kQueryBlock = 16 * 128, kKeyBlock = 16 * 128;  // blocks of 64 columns

float query_value(int row, int column) { return static_cast<float>((row * 7 + column * 3) % 11 - 5); }
float key_value(int row, int column) { return static_cast<float>((row * 5 + column * 13) % 9 - 4); }

/// 16 rows at `first`, as a copy with the 128-byte swizzle leaves them: bits 4 to 6 of an address, exclusive
/// or bits 7 to 9.
void fill_rows(int first, float (*value)(int, int)) {
  for (int row = lane(); row < 16; row += 32) {
    for (int column = 0; column < kColumns; column += 2) {
      const int plain = first + column / 64 * 16 * 128 + row * 128 + column % 64 * 2;
      store_shared(static_cast<Uint32>(plain ^ (plain >> 7 & 7) << 4),
                   ElementTraits<Bf16>::pack(value(row, column), value(row, column + 1)));
    }
  }
}

TEST(sm90_warp_scores, are_products_of_rows_of_swizzled_tiles_laid_out_like_wgmmas) {
  constexpr int kKeys = 4096;  // address
  std::array<std::array<float, 16>, 16> scores{};
  emulator::launch(
      [&] {
        fill_rows(0, query_value);
        fill_rows(kKeys, key_value);
        __syncthreads();
        float d[2][4];
        warp_scores<Bf16, kColumns / 16, kQueryBlock, kKeyBlock>(0, kKeys, d);
        for (int i = 0; i < 8; ++i) {
          const int row = lane() / 4 + 8 * (i >> 1 & 1), key = 8 * (i >> 2) + 2 * (lane() % 4) + (i & 1);
          scores[static_cast<std::size_t>(row)][static_cast<std::size_t>(key)] = d[i >> 2][i & 3];
        }
      },
      1, 32, 8192);
  for (int row = 0; row < 16; ++row) {
    for (int key = 0; key < 16; ++key) {
      float want = 0;
      for (int column = 0; column < kColumns; ++column)
        want += query_value(row, column) * key_value(key, column);
      EXPECT_EQ(scores[static_cast<std::size_t>(row)][static_cast<std::size_t>(key)], want)
          << row << " " << key;
    }
  }
}

// ---- softmax

constexpr int kTileN = 16, kBlocks = 6;
constexpr float kScale = 0.25f;
using Score = std::function<float(int row, int key)>;

struct Row {
  float out = 0, lse = 0;  // with the index of a key as its value
};

/// 16 rows over kBlocks blocks in the order and by the steps of forward.cuh: two with their maxima, then
/// blocks without.
template <class Element>
std::vector<Row> rows_of(const Score& score, float scale_log2) {
  std::vector<Row> rows(16);
  emulator::launch(
      [&] {
        BlockSoftmax<Element, kTileN, 1> softmax;
        float out[2] = {};
        for (int n = kBlocks - 1; n >= 0; --n) {
          float s[kTileN / 2], larger[2] = {-kInfinity, -kInfinity};
          const auto fill = [&] {
            for (int i = 0; i < kTileN / 2; ++i) {
              const int key = n * kTileN + 8 * (i >> 2) + 2 * (lane() % 4) + (i & 1), r = i >> 1 & 1;
              s[i] = score(lane() / 4 + 8 * r, key);
              larger[r] = fmaxf(larger[r], s[i]);
            }
          };
          fill();
          bool moved = false;
          if (n == kBlocks - 1) softmax.start();
          if (n >= kBlocks - 2) {
            moved = softmax.update(s, scale_log2);
          } else {
            softmax.update_whole(s, scale_log2);
            moved = softmax.failed();
            if (moved) {
              const std::array<float, kTileN / 2> terms = std::to_array(s);
              fill();
              bool failed[2];
              softmax.find_failed(larger, failed, scale_log2);
              float sum[2] = {};
              for (int i = 0; i < kTileN / 2; ++i) {
                const int r = i >> 1 & 1;
                const auto e = softmax.exponent(r, scale_log2);
                const float again = exp2_approx(fmaf(s[i] - e.difference, scale_log2, -e.subtrahend));
                s[i] = failed[r] ? again : terms[static_cast<std::size_t>(i)];
                sum[r] += again;
              }
              for (int r = 0; r < 2; ++r)
                if (failed[r]) softmax.block_sum[r] = sum[r];
            }
            softmax.add_block();
          }
          for (int r = 0; r < 2; ++r)
            if (moved) out[r] *= softmax.correction[r];
          for (int i = 0; i < kTileN / 2; ++i) {
            const int key = n * kTileN + 8 * (i >> 2) + 2 * (lane() % 4) + (i & 1);
            const float p = ElementTraits<Element>::to_float(
                Element{static_cast<unsigned short>(ElementTraits<Element>::pack(s[i], 0.0f))});
            out[i >> 1 & 1] += p * static_cast<float>(key);
          }
        }
        for (int r = 0; r < 2; ++r) {
          const RowResult result =
              finish_row(softmax.reference[r], quad_sum(softmax.sum[r]), scale_log2, -kInfinity);
          const float whole = quad_sum(out[r]);
          rows[static_cast<std::size_t>(lane() / 4 + 8 * r)] = {whole * result.factor, result.lse};
        }
      },
      1, 32, 0);
  return rows;
}

float ordinary(int row, int key) { return static_cast<float>((row * 31 + key * 17) % 23) / 8 - 1; }

/// Each row another way through the blocks.
float any_way(int row, int key) {
  const int block = kBlocks - 1 - key / kTileN;  // in the order they are walked
  const float s = ordinary(row, key);
  switch (row) {
    case 1: return s + 12.0f * static_cast<float>(block);  // rises within the limit of bf16, past that of f16
    case 2: return s + 200.0f * static_cast<float>(block);  // past every limit, in each block
    case 3: return block == 4 ? s + 500 : s;
    case 4: return s + 40000;                   // far from 0 from the start
    case 5: return block < 3 ? s : s + 40000;   // far from the fourth block on
    case 6: return block < 3 ? -kInfinity : s;  // no key in three blocks
    case 7: return s - 200.0f * static_cast<float>(block);
    case 8: return block == 1 ? s + 26 : s;  // moves, and what was before still counts
    case 9: return block == 3 && key % kTileN == 5 ? std::numeric_limits<float>::quiet_NaN() : s;
    case 10: return block == 2 && key % kTileN == 1 ? kInfinity : s;
    case 11: return s * 1e30f;
    case 12: return -kInfinity;
    case 13: return block == 3 && key % kTileN == 2 ? s + 200 : s;  // in one lane alone
    default: return s;
  }
}

template <class Element>
void expect_the_formula(double relative_error) {
  const std::vector<Row> rows = rows_of<Element>(any_way, kScale * kLog2e);
  for (int row = 0; row < 16; ++row) {
    const Row& got = rows[static_cast<std::size_t>(row)];
    if (row == 9 || row == 10) {
      EXPECT_TRUE(std::isnan(got.out) && std::isnan(got.lse)) << row;
      continue;
    }
    double larger = -INFINITY, sum = 0, out = 0;
    for (int key = 0; key < kBlocks * kTileN; ++key)
      larger = std::max(larger, double{any_way(row, key)} * kScale);
    if (larger == -INFINITY) {
      EXPECT_EQ(got.out, 0) << row;
      EXPECT_EQ(got.lse, -kInfinity) << row;
      continue;
    }
    for (int key = 0; key < kBlocks * kTileN; ++key) {
      const double p = std::exp(double{any_way(row, key)} * kScale - larger);
      sum += p;
      out += p * key;
    }
    EXPECT_NEAR(got.out, out / sum, relative_error * kBlocks * kTileN) << row;
    const double lse = larger + std::log(sum);
    EXPECT_NEAR(got.lse, lse, 1e-3 + 1e-5 * std::abs(lse)) << row;
  }
}

TEST(sm90_softmax, mask_leaves_the_columns_of_its_range) {
  constexpr int kWide = 128;
  for (const auto& [begin, end] :
       {std::pair{0, kWide}, std::pair{-300, 500}, std::pair{0, 0}, std::pair{5, 5}, std::pair{1, 2},
        std::pair{3, 127}, std::pair{-7, 1}, std::pair{64, 66}, std::pair{120, 400}, std::pair{-400, -3},
        std::pair{126, 128}, std::pair{300, 400}, std::pair{40, 17}}) {
    std::array<std::array<int, kWide>, 16> seen{};
    emulator::launch(
        [&] {
          float s[kWide / 2];
          for (float& x : s) x = 1.0f;
          const int first = 2 * (lane() % 4);
          for (int r = 0; r < 2; ++r) BlockSoftmax<Bf16, kWide, 1>::mask(s, r, begin - first, end - first);
          for (int i = 0; i < kWide / 2; ++i) {
            const int row = lane() / 4 + 8 * (i >> 1 & 1), column = 8 * (i >> 2) + first + (i & 1);
            EXPECT_TRUE(s[i] == 1.0f || s[i] == -kInfinity);
            seen[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)] = s[i] == 1.0f;
          }
        },
        1, 32, 0);
    for (const auto& row : seen) {
      for (int column = 0; column < kWide; ++column) {
        EXPECT_EQ(row[static_cast<std::size_t>(column)], column >= begin && column < end)
            << column << " of [" << begin << ", " << end << ")";
      }
    }
  }
}

TEST(sm90_softmax, without_maxima_is_the_formula_whatever_later_blocks_hold_in_bf16) {
  expect_the_formula<Bf16>(4e-3);
}
TEST(sm90_softmax, without_maxima_is_the_formula_whatever_later_blocks_hold_in_f16) {
  expect_the_formula<F16>(5e-4);
}

TEST(sm90_softmax, a_rows_bits_do_not_depend_on_other_rows_of_the_warp) {
  const std::vector<Row> among_others = rows_of<F16>(any_way, kScale * kLog2e);
  for (const int row : {0, 1, 4, 5, 8, 13, 15}) {
    const Row alone = rows_of<F16>([row](int r, int key) { return r == row ? any_way(row, key) : 0.0f; },
                                   kScale * kLog2e)[static_cast<std::size_t>(row)];
    const Row& got = among_others[static_cast<std::size_t>(row)];
    EXPECT_EQ(got.out, alone.out) << row;
    EXPECT_EQ(got.lse, alone.lse) << row;
  }
}

}  // namespace
}  // namespace onepass::cuda
