// key_parts.h - how a batch-invariant call cuts the keys of a sequence. Read by g++ and by NVRTC alike.
//
// Parts of kPartKeys keys each, counted from the sequence's first key and merged in their order. So how the
// sums of a row are made follows from its own keys, whatever else is in the batch and whatever runs it.
#pragma once

#include "common/tile_range.h"

namespace onepass {

constexpr int kPartKeys = 2048;  // a multiple of every tile of keys

ONEPASS_HOST_DEVICE constexpr Index num_key_parts(Index seqlen_k) {
  return seqlen_k <= kPartKeys ? 1 : (seqlen_k + kPartKeys - 1) / kPartKeys;
}

/// Blocks of tile_n keys of a part, of those in [n_block_min, n_block_max). May be empty.
ONEPASS_HOST_DEVICE constexpr KeyRange part_blocks(Index n_block_min, Index n_block_max, Index part_idx,
                                                   Index tile_n) {
  const Index tiles = kPartKeys / tile_n;
  const Index begin = min_index(max_index(n_block_min, part_idx * tiles), n_block_max);
  return {begin, max_index(begin, min_index(n_block_max, (part_idx + 1) * tiles))};
}

}  // namespace onepass
