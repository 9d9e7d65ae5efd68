#include "backends/cuda/kernels/sm90/decode_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace onepass::cuda {
namespace {

int units_of(const std::vector<int>& tiles) {
  return std::accumulate(tiles.begin(), tiles.end(), 0,
                         [](int sum, int num_tiles) { return sum + item_units(num_tiles); });
}

/// Every tile once, in order of the shares; an item without tiles once; first_share to last_share have it.
void check_shares(const std::vector<int>& tiles, int most) {
  const Shares shares = share_out(units_of(tiles), most);
  ASSERT_LE(shares.count, most);
  EXPECT_EQ(shares.begin(0), 0);
  EXPECT_EQ(shares.begin(shares.count), shares.units);
  int first = 0;
  for (const int num_tiles : tiles) {
    int next = 0, owners = 0;
    for (int share = 0; share < shares.count; ++share) {
      const ItemPart part = part_of_item(shares, share, first, num_tiles);
      const bool owns = num_tiles == 0 ? share == part.first_share : part.begin < part.end;
      ASSERT_EQ(owns, share >= part.first_share && share <= part.last_share);
      if (!owns) continue;
      ++owners;
      ASSERT_TRUE(num_tiles == 0 || part.begin == next);
      next = part.end;
      ASSERT_LT(first, shares.begin(share + 1))
          << "a block finds its items from its share's begin to its end";
      ASSERT_GT(first + item_units(num_tiles), shares.begin(share));
    }
    ASSERT_EQ(next, num_tiles);
    ASSERT_GE(owners, 1);
    first += item_units(num_tiles);
  }
}

TEST(decode_shares, every_tile_is_in_one_share_and_the_shares_of_an_item_follow_each_other) {
  std::mt19937 random(3);
  for (int n = 0; n < 2000; ++n) {
    std::vector<int> tiles(1 + random() % 30);
    const int longest = 1 << random() % 8;
    for (int& num_tiles : tiles) num_tiles = static_cast<int>(random()) % longest * (random() % 4 > 0);
    for (int& num_tiles : tiles) num_tiles = std::max(num_tiles, 0);
    check_shares(tiles, 1 + static_cast<int>(random() % 20));
  }
}

TEST(decode_shares, equal_items_that_blocks_divide_stay_whole) {
  for (const int num_tiles : {0, 1, 2, 7, 32, 100}) {
    for (const int items : {16, 32, 48, 160}) {
      const std::vector<int> tiles(static_cast<std::size_t>(items), num_tiles);
      const Shares shares = share_out(units_of(tiles), 16);
      if (shares.count < 16) continue;  // too little for all
      for (int i = 0; i < items; ++i) {
        const ItemPart part = part_of_item(shares, i * 16 / items, i * item_units(num_tiles), num_tiles);
        EXPECT_EQ(part.first_share, part.last_share);
        EXPECT_EQ(part.end - part.begin, num_tiles);
      }
    }
  }
}

TEST(decode_shares, the_longest_share_has_a_tile_more_than_the_mean_at_most) {
  std::mt19937 random(4);
  std::vector<int> tiles(128);
  for (int& num_tiles : tiles) num_tiles = 1 << random() % 11;
  const Shares shares = share_out(units_of(tiles), 16);
  const double mean = std::accumulate(tiles.begin(), tiles.end(), 0.0) / 16;
  for (int share = 0; share < 16; ++share) {
    int first = 0, read = 0;
    for (const int num_tiles : tiles) {
      const ItemPart part = part_of_item(shares, share, first, num_tiles);
      read += part.end - part.begin;
      first += item_units(num_tiles);
    }
    EXPECT_LE(read, mean + 1 + 128 / 4.0) << "and a start costs a quarter of a tile";
  }
}

}  // namespace
}  // namespace onepass::cuda
