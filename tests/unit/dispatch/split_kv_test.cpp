#include "dispatch/split_kv.h"

#include <gtest/gtest.h>

#include <vector>

namespace onepass {
namespace {

static_assert(split_blocks(3, 13, 0, 4).end == 6);

TEST(split_kv, every_block_is_in_exactly_one_part_and_parts_are_even) {
  for (Index first : {0, 1, 7}) {
    for (Index count = 0; count <= 20; ++count) {
      for (Index num_splits = 1; num_splits <= 24; ++num_splits) {
        Index next = first;
        for (Index split = 0; split < num_splits; ++split) {
          const KeyRange part = split_blocks(first, first + count, split, num_splits);
          ASSERT_EQ(part.begin, next) << count << " blocks, split " << split << " of " << num_splits;
          ASSERT_GE(part.end - part.begin, count / num_splits);
          ASSERT_LE(part.end - part.begin, (count + num_splits - 1) / num_splits);
          next = part.end;
        }
        ASSERT_EQ(next, first + count) << count << " blocks in " << num_splits;
      }
    }
  }
}

TEST(split_kv, every_visible_key_of_a_query_tile_is_visited_once) {
  for (const MaskKind kind : {MaskKind::None, MaskKind::CausalBottomRight, MaskKind::CausalTopLeft}) {
    for (const Index window_left : {Index{-1}, Index{40}}) {
      for (const Index num_splits : {1, 2, 3, 8, 50}) {
        constexpr Index kSeqlenQ = 70, kSeqlenK = 333, kTileM = 32, kTileN = 16;
        const KeyBand band = key_band(kind, window_left, -1, kSeqlenQ, kSeqlenK);
        for (Index row = 0; row < kSeqlenQ; row += kTileM) {
          const Index row_end = min_index(kSeqlenQ, row + kTileM);
          const TileRange range = tile_range(band, kSeqlenK, row, row_end, kTileN);
          std::vector<int> visits(static_cast<std::size_t>(kSeqlenK), 0);
          for (Index split = 0; split < num_splits; ++split) {
            const KeyRange part = split_blocks(range.n_block_min, range.n_block_max, split, num_splits);
            for (Index j = part.begin * kTileN; j < min_index(part.end * kTileN, kSeqlenK); ++j) {
              ++visits[static_cast<std::size_t>(j)];
            }
          }
          const KeyRange keys = visible_keys(band, kSeqlenK, row, row_end);
          for (Index j = 0; j < kSeqlenK; ++j) {
            const int count = visits[static_cast<std::size_t>(j)];
            ASSERT_LE(count, 1) << "key " << j;
            if (keys.begin <= j && j < keys.end) {
              ASSERT_EQ(count, 1) << "key " << j;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace onepass
