#include "backends/cuda/kernels/sm90/layout.h"

#include <gtest/gtest.h>

namespace onepass::cuda {
namespace {

TEST(sm90_layout, tiles_are_whole_blocks_of_64_columns) {
  EXPECT_EQ(column_blocks(8), 1);
  EXPECT_EQ(column_blocks(64), 1);
  EXPECT_EQ(column_blocks(80), 2);
  EXPECT_EQ(sm90_tile_bytes(128, 128), 128 * 128 * 2);
  EXPECT_EQ(sm90_tile_bytes(128, 80), 128 * 128 * 2);
  EXPECT_EQ(sm90_tile_bytes(96, 192), 96 * 192 * 2);
}

TEST(sm90_layout, every_tile_begins_where_the_swizzle_does) {
  for (const int rows : {64, 96, 128, 192}) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      EXPECT_EQ(sm90_tile_bytes(rows, head_dim) % kSwizzleBytes, 0) << rows << " x " << head_dim;
    }
  }
}

TEST(sm90_layout, a_block_has_queries_keys_values_and_barriers) {
  EXPECT_EQ(sm90_shared_bytes(128, 128, 192, 128, 2, 1),
            128 * 192 * 2 + 2 * (128 * 192 * 2 + 128 * 128 * 2) + sm90_barrier_bytes(2, 1));
  EXPECT_EQ(sm90_barrier_bytes(2, 1), 8 * 17 + (3 * 68 + 4));
}

TEST(sm90_layout, sizes_that_only_a_name_can_state_do_not_overflow) {
  EXPECT_GT(sm90_shared_bytes(4096, 4096, 4096, 4096, 4096, 2), 4096LL * 2 * 4096 * 8192);
}

}  // namespace
}  // namespace onepass::cuda
