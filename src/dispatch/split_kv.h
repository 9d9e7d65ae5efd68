// How the key blocks of one query block are shared out among splits.
#pragma once

#include "backends/cuda/kernels/common/tile_range.h"

namespace onepass {

/// Blocks that split `split_idx` visits out of [n_block_min, n_block_max): contiguous parts in order, their
/// sizes differ by at most one, every block in exactly one part. Parts are empty when there are more splits
/// than blocks; such a split contributes o = 0, lse = -inf.
constexpr KeyRange split_blocks(Index n_block_min, Index n_block_max, Index split_idx, Index num_splits) {
  const Index count = n_block_max - n_block_min;
  const Index size = count / num_splits;
  const Index larger = count % num_splits;  // the first `larger` parts take one block more
  const Index begin = n_block_min + split_idx * size + min_index(split_idx, larger);
  return {begin, begin + size + (split_idx < larger ? 1 : 0)};
}

}  // namespace onepass
