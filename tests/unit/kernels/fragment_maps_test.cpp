#include "backends/cuda/kernels/ptx/fragment_maps.h"

#include <gtest/gtest.h>

#include <bitset>
#include <set>
#include <utility>

#include "backends/cuda/kernels/common/shared_row.h"

namespace onepass::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kMaxHeadDim = 576;

TEST(fragment_maps, every_element_of_an_accumulator_is_in_one_register) {
  std::set<std::pair<int, int>> places;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const TilePlace place = accumulator_place(lane, e);
      EXPECT_TRUE(place.row >= 0 && place.row < 16 && place.column >= 0 && place.column < 8);
      places.emplace(place.row, place.column);
    }
  }
  EXPECT_EQ(places.size(), 16u * 8u);
}

// What the running softmax relies on: two shuffles, with lanes 1 and 2 apart, reduce over a whole row.
TEST(fragment_maps, a_quad_of_lanes_shares_a_row_of_the_accumulator_and_no_other_lane_has_it) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int other = 0; other < kLanes; ++other) {
      const bool same_quad = (lane ^ other) < 4;
      for (int e = 0; e < 4; ++e) {
        EXPECT_EQ(accumulator_place(lane, e).row == accumulator_place(other, e).row, same_quad);
      }
    }
  }
}

/// An ldmatrix runs in four phases of eight lanes, 16 bytes a lane: together all 32 banks of 4 bytes, or it
/// is slower.
template <class PlaceOf>
bool touches_every_bank_in_each_phase(int pitch, bool swizzled, PlaceOf place_of) {
  for (int phase = 0; phase < 4; ++phase) {
    std::bitset<32> banks;
    for (int lane = 8 * phase; lane < 8 * phase + 8; ++lane) {
      const TilePlace place = place_of(lane);
      const int address = shared_offset(place.row, 2 * place.column, pitch, swizzled);
      EXPECT_EQ(address % 16, 0);
      for (int word = 0; word < 4; ++word) banks.set((address / 4 + word) % 32);
    }
    if (!banks.all()) return false;
  }
  return true;
}

/// Calls check(pitch, swizzled) for rows of every head_dim. Where two warps share rows, each of them gets
/// whole tiles of 16 columns, so rows are padded to 32.
template <class Check>
void for_every_layout(Check check) {
  for (int head_dim = 8; head_dim <= kMaxHeadDim; head_dim += 8) {
    for (const int multiple : {16, 32}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " padded to a multiple of " << multiple);
      const int padded = round_up(head_dim, multiple);
      check(shared_pitch_bytes(padded, multiple), is_swizzled(padded, multiple));
    }
  }
}

TEST(fragment_maps, no_ldmatrix_has_a_bank_conflict_at_any_head_dim) {
  for_every_layout([](int pitch, bool swizzled) {
    EXPECT_TRUE(touches_every_bank_in_each_phase(pitch, swizzled, ldmatrix_a_place)) << "Q, P";
    EXPECT_TRUE(touches_every_bank_in_each_phase(pitch, swizzled, ldmatrix_b_place)) << "K";
    EXPECT_TRUE(touches_every_bank_in_each_phase(pitch, swizzled, ldmatrix_b_trans_place)) << "V";
    EXPECT_TRUE(touches_every_bank_in_each_phase(pitch, swizzled, ldmatrix_a_trans_place)) << "V of decode";
  });
}

// P between warps and O on its way out: a lane stores two neighbours of a row, four bytes.
TEST(fragment_maps, no_store_of_packed_accumulators_has_a_bank_conflict_at_any_head_dim) {
  for_every_layout([](int pitch, bool swizzled) {
    for (const int element : {0, 2}) {
      std::bitset<32> banks;
      for (int lane = 0; lane < kLanes; ++lane) {
        const TilePlace place = accumulator_place(lane, element);
        banks.set(shared_offset(place.row, 2 * place.column, pitch, swizzled) / 4 % 32);
      }
      EXPECT_TRUE(banks.all()) << "element " << element;
    }
  });
}

TEST(fragment_maps, without_padding_or_swizzle_there_would_be_conflicts) {
  EXPECT_FALSE(touches_every_bank_in_each_phase(2 * 128, false, ldmatrix_a_place));
}

TEST(fragment_maps, a_walk_along_a_swizzled_row_gives_the_offsets_of_its_columns) {
  using Row = SharedRow<128>;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 256; ++column) {
      EXPECT_EQ(Row::along(Row::offset(row, column % 32), column / 32 * 32), Row::offset(row, column));
    }
  }
}

static_assert(SharedRow<40>::kPadded == 48 && SharedRow<40>::kPitch == 112);
static_assert(SharedRow<128>::kPitch == 256 && SharedRow<96>::kPitch == 208 &&
              SharedRow<256, 32>::kPitch == 512);
static_assert(SharedRow<264, 32>::kPadded == 288);

}  // namespace
}  // namespace onepass::cuda
