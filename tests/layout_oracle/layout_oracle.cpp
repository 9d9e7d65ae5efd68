// The kernels' fragment maps (kernels/ptx/fragment_maps.h) and swizzled rows (kernels/common/shared_row.h)
// against CuTe's layouts, element by element, on the CPU. CuTe is an oracle here and nothing else: no kernel
// and no library of ours includes it.
#include <gtest/gtest.h>

#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/layout.hpp>
#include <cute/swizzle.hpp>

#include "backends/cuda/kernels/common/shared_row.h"
#include "backends/cuda/kernels/ptx/fragment_maps.h"

namespace onepass::cuda {

static bool operator==(TilePlace a, TilePlace b) { return a.row == b.row && a.column == b.column; }
static std::ostream& operator<<(std::ostream& out, TilePlace p) {
  return out << "(" << p.row << ", " << p.column << ")";
}

namespace {

using Mma = cute::MMA_Traits<cute::SM80_16x8x16_F32BF16BF16F32_TN>;
using MmaF16 = cute::MMA_Traits<cute::SM80_16x8x16_F32F16F16F32_TN>;
using Ldmatrix = cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>;
using LdmatrixTrans = cute::Copy_Traits<cute::SM75_U16x8_LDSM_T>;

static_assert(std::is_same_v<Mma::ALayout, MmaF16::ALayout> &&
                  std::is_same_v<Mma::BLayout, MmaF16::BLayout> &&
                  std::is_same_v<Mma::CLayout, MmaF16::CLayout>,
              "one set of maps serves bf16 and f16");

constexpr int kLanes = 32, kBitsPerElement = 16, kBitsPerLdmatrixRow = 128;

/// CuTe's layouts give an index into the tile, first mode fastest: (m, k) of A, (n, k) of B, (m, n) of C.
template <class Layout>
TilePlace cute_place(Layout layout, int lane, int value, int first_extent) {
  const int index = static_cast<int>(layout(lane, value));
  return {index % first_extent, index / first_extent};
}
TilePlace cute_a(int lane, int value) { return cute_place(Mma::ALayout{}, lane, value, 16); }
TilePlace cute_c(int lane, int value) { return cute_place(Mma::CLayout{}, lane, value, 16); }
TilePlace cute_b(int lane, int value) {  // as (k, n), which is how our maps say it
  const TilePlace n_k = cute_place(Mma::BLayout{}, lane, value, 8);
  return {n_k.column, n_k.row};
}

/// Where in shared memory the element `half` of register `reg` of `lane` comes from after an ldmatrix whose
/// lanes address rows as `place_of` says: CuTe maps registers to the bits that the lanes' rows of 128 bits
/// offer.
template <class Traits, class PlaceOf>
TilePlace loaded_from(int lane, int reg, int half, PlaceOf place_of) {
  const int bit = static_cast<int>(typename Traits::DstLayout{}(lane, 32 * reg + kBitsPerElement * half));
  const int source_lane = bit / kBitsPerLdmatrixRow;
  EXPECT_EQ(static_cast<int>(typename Traits::SrcLayout{}(source_lane, bit % kBitsPerLdmatrixRow)), bit);
  const TilePlace row = place_of(source_lane);
  return {row.row, row.column + bit % kBitsPerLdmatrixRow / kBitsPerElement};
}

TEST(layout_oracle, accumulator_elements_are_where_cute_puts_them) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int e = 0; e < 4; ++e) EXPECT_EQ(accumulator_place(lane, e), cute_c(lane, e)) << lane << " " << e;
  }
}

TEST(layout_oracle, operand_a_registers_hold_what_cute_says) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < 4; ++reg) {
      const TilePlace first = operand_a_place(lane, reg);
      EXPECT_EQ(first, cute_a(lane, 2 * reg)) << lane << " " << reg;
      EXPECT_EQ((TilePlace{first.row, first.column + 1}), cute_a(lane, 2 * reg + 1)) << lane << " " << reg;
    }
  }
}

TEST(layout_oracle, operand_b_registers_hold_what_cute_says) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < 2; ++reg) {
      const TilePlace first = operand_b_place(lane, reg);
      EXPECT_EQ(first, cute_b(lane, 2 * reg)) << lane << " " << reg;
      EXPECT_EQ((TilePlace{first.row + 1, first.column}), cute_b(lane, 2 * reg + 1)) << lane << " " << reg;
    }
  }
}

TEST(layout_oracle, accumulators_of_two_tiles_are_operand_a) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < 4; ++reg) {
      const AccumulatorPair pair = operand_a_from_accumulators(reg);
      for (int half = 0; half < 2; ++half) {
        const TilePlace in_tile = cute_c(lane, pair.element + half);
        EXPECT_EQ((TilePlace{in_tile.row, in_tile.column + 8 * pair.tile}), cute_a(lane, 2 * reg + half))
            << lane << " " << reg;
      }
    }
  }
}

TEST(layout_oracle, ldmatrix_of_queries_gives_operand_a) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < 4; ++reg) {
      for (int half = 0; half < 2; ++half) {
        EXPECT_EQ(loaded_from<Ldmatrix>(lane, reg, half, ldmatrix_a_place), cute_a(lane, 2 * reg + half))
            << lane << " " << reg;
      }
    }
  }
}

/// Registers 0 and 1 are operand B of the n8 tile that begins at n = 0, registers 2 and 3 of that at n = 8.
TilePlace cute_b_of_two_tiles(int lane, int reg, int half) {
  const TilePlace k_n = cute_b(lane, 2 * (reg % 2) + half);
  return {k_n.row, k_n.column + 8 * (reg / 2)};
}

TEST(layout_oracle, ldmatrix_of_keys_gives_operand_b_of_two_tiles) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < 4; ++reg) {
      for (int half = 0; half < 2; ++half) {
        const TilePlace n_k = loaded_from<Ldmatrix>(lane, reg, half, ldmatrix_b_place);
        EXPECT_EQ((TilePlace{n_k.column, n_k.row}), cute_b_of_two_tiles(lane, reg, half))
            << lane << " " << reg;
      }
    }
  }
}

TEST(layout_oracle, transposing_ldmatrix_of_values_gives_operand_b_of_two_tiles) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < 4; ++reg) {
      for (int half = 0; half < 2; ++half) {
        // Rows in shared memory are k. CuTe counts the two halves of a register 128 bits apart: neighbouring
        // rows.
        const TilePlace k_n = loaded_from<LdmatrixTrans>(lane, reg, half, ldmatrix_b_trans_place);
        EXPECT_EQ(k_n, cute_b_of_two_tiles(lane, reg, half)) << lane << " " << reg;
      }
    }
  }
}

TEST(layout_oracle, transposing_ldmatrix_of_values_gives_operand_a_of_the_transposed_product) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < 4; ++reg) {
      for (int half = 0; half < 2; ++half) {
        const TilePlace k_m = loaded_from<LdmatrixTrans>(lane, reg, half, ldmatrix_a_trans_place);
        EXPECT_EQ((TilePlace{k_m.column, k_m.row}), cute_a(lane, 2 * reg + half)) << lane << " " << reg;
      }
    }
  }
}

/// Rows of 128 bytes << kShift: bits 4 to 6 of an offset are exclusive-or'ed with the row's lowest three.
template <int kShift>
void expect_cutes_swizzle() {
  using Row = SharedRow<64 << kShift>;
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < Row::kPitch; ++column) {
      const int plain = row * Row::kPitch + column;
      EXPECT_EQ(Row::offset(row, column), (cute::Swizzle<3, 4, 3 + kShift>::apply(plain)))
          << row << " " << column;
    }
  }
}

TEST(layout_oracle, rows_of_whole_lines_are_swizzled_as_cute_does) {
  expect_cutes_swizzle<0>();
  expect_cutes_swizzle<1>();
  expect_cutes_swizzle<2>();
  expect_cutes_swizzle<3>();
}

}  // namespace
}  // namespace onepass::cuda
