// The tiles of the sm90 backward kernel - a block of keys of a head each - and the order in which they add to dQ.
//
// The tiles that add to a block of queries do so one after another, in an order that depends on the problem
// alone: that makes dQ the same bits in every run. A tile waits for tiles of lower numbers only, and numbers are
// drawn from a ticket, so the lowest number that is not done never waits: nothing can deadlock, whichever
// thread blocks run.
//
// Descending: the last keys first, and each tile walks its queries upwards. With a causal mask it begins at
// the diagonal, where its neighbour has been kTileN / kTileM steps before: it need not wait again. Its short
// tiles come first, though; so the last heads are done in ascending order, long tiles first, with several
// heads by turns, as each tile follows its neighbour a step behind.
#pragma once

#include "common/gradient_row.cuh"
#include "common/sequence.cuh"
#include "common/tile_range.h"
#include "params.h"
#include "sm90/backward_layout.h"

namespace onepass::cuda {

struct BackwardTile {
  int exists;           // 0: there is no tile, and none will come
  int batch_idx, head;  // of keys
  int n_block;
  Sequence seq;
  int band_lower, band_upper;  // KeyBand in 32 bits
  int m_min, m_max;            // blocks of queries, of each query head of the group; none where equal
  int row_block0;              // index of block 0 of the group's first query head
  int descending;
  int first_step;              // index of the first among all steps of the block
  int unused;

  ONEPASS_DEVICE BasicKeyBand<int> band() const { return {band_lower, band_upper}; }
};
static_assert(sizeof(BackwardTile) == kBackwardWorkBytes, "backward_layout.h counts it");

/// Of rows [row0, row0 + kTileM): the blocks of keys that they visit.
template <int kTileM, int kTileN>
ONEPASS_DEVICE BasicTileRange<int> visited_blocks(BasicKeyBand<int> band, const Sequence& seq, int row0) {
  return tile_range(band, seq.seqlen_k, row0, min(row0 + kTileM, seq.seqlen_q), kTileN);
}

/// Fills `found` but for `exists`; false where the sequence has no such keys.
template <class Spec>
ONEPASS_DEVICE bool find_backward_tile(const Sm90BackwardParams& all, int tile, BackwardTile& found) {
  const ForwardParams& p = all.backward.forward;
  const bool descending = tile < all.descending_heads * all.n_blocks;
  const int first = descending ? 0 : all.descending_heads;  // head: of all sequences
  const int heads = descending ? all.descending_heads : p.batch * p.num_heads_k - all.descending_heads;
  const int group_heads = descending ? all.descending_group : all.ascending_group;
  const int i = tile - first * all.n_blocks, group = i / (group_heads * all.n_blocks);
  const int together = min(group_heads, heads - group * group_heads);
  const int within = i - group * group_heads * all.n_blocks, round = within / together;
  const int head = first + group * group_heads + within - round * together;
  const int n_block = descending ? all.n_blocks - 1 - round : round;
  const int batch_idx = head / p.num_heads_k;
  const Sequence seq = sequence_at(p, batch_idx, true);
  const int key0 = n_block * Spec::kTileN;
  if (key0 >= seq.seqlen_k) return false;
  BasicKeyBand<int> band{-kMostCountedRows, kMostCountedRows};
  if constexpr (Spec::kMaskEnd) band = narrow_key_band(p, seq);
  const BasicQueryBlocks<int> blocks =
      query_blocks(band, seq.seqlen_q, key0, min(key0 + Spec::kTileN, seq.seqlen_k), Spec::kTileM);
  found.batch_idx = batch_idx;
  found.head = head - batch_idx * p.num_heads_k;
  found.n_block = n_block;
  found.seq = seq;
  found.band_lower = band.lower;
  found.band_upper = band.upper;
  found.m_min = blocks.m_block_min;
  found.m_max = blocks.m_block_max;
  const int head_q = found.head * p.group.divisor;
  found.row_block0 = static_cast<int>(first_gradient_row(p, seq, batch_idx, head_q) / Spec::kTileM);
  found.descending = descending;
  return true;
}

/// How many tiles add to a block of queries before this one.
template <class Spec>
ONEPASS_DEVICE int turn_of(const BackwardTile& tile, int m_block) {
  const auto range =
      visited_blocks<Spec::kTileM, Spec::kTileN>(tile.band(), tile.seq, m_block * Spec::kTileM);
  return tile.descending ? range.n_block_max - 1 - tile.n_block : tile.n_block - range.n_block_min;
}

/// visit(query head of the group, block of queries): the steps of a tile in their order. What the tile says is
/// read again in each step: few registers.
template <class Visit>
ONEPASS_DEVICE void walk_steps(const BackwardTile& tile, int group, const Visit& visit) {
#pragma unroll 1
  for (int head = 0; head < group; ++head) {
    int m_block = tile.descending ? tile.m_min : tile.m_max - 1;
#pragma unroll 1
    while (m_block >= tile.m_min && m_block < tile.m_max) {
      visit(head, m_block);
      m_block += tile.descending ? 1 : -1;
    }
  }
}

}  // namespace onepass::cuda
