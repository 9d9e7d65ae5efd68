// Which rows a tile is, where sequences have lengths of their own: numbers count tiles that exist, sequence after sequence.
//
// A warp keeps the tiles of 32 sequences, a lane each, as a running sum. Numbers only grow, so it walks the sequences once;
// a ballot finds the sequence of a number.
#pragma once

#include "common/sequence.cuh"
#include "params.h"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// All lanes of a warp make it and call it, and get the same answers.
template <int kTileM, bool kLongestFirst>
class RaggedTiles {
 public:
  int batch_idx, head, m_block;  // of the last number that was found

  ONEPASS_DEVICE explicit RaggedTiles(const ForwardParams& params) : p(params) { count(); }

  /// False past the last tile; num_tiles() is known then.
  ONEPASS_DEVICE bool find(int number) {
    for (;;) {
      const int here = __shfl_sync(0xffffffffu, up_to_own_, 31);
      if (number < before_ + here) break;
      before_ += here;
      first_ += 32;
      if (first_ >= p.batch) return false;
      count();
    }
    const int local = number - before_;
    const int owner = __popc(__ballot_sync(0xffffffffu, up_to_own_ <= local));
    const int up_to_owner = __shfl_sync(0xffffffffu, up_to_own_, owner);
    const int before_owner = owner == 0 ? 0 : __shfl_sync(0xffffffffu, up_to_own_, owner - 1);
    batch_idx = first_ + owner;
    place(local - before_owner, p.tile_heads.quotient(up_to_owner - before_owner));
    return true;
  }
  ONEPASS_DEVICE int num_tiles() const { return before_; }

 private:
  /// Tile `i` of a sequence: a head's rows after another's or, longest rows first, row block by row block.
  ONEPASS_DEVICE void place(int i, int blocks) {
    if constexpr (kLongestFirst) {
      const int rank = p.tile_heads.quotient(i);
      head = p.tile_heads.remainder(i, rank);
      m_block = blocks - 1 - rank;
    } else {
      head = i / blocks;
      m_block = i - head * blocks;
    }
  }

  /// The tiles of 32 sequences, up to and with this lane's.
  ONEPASS_DEVICE void count() {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int rows = first_ + lane < p.batch ? sequence_at(p, first_ + lane, true).seqlen_q : 0;
    up_to_own_ = (rows + kTileM - 1) / kTileM * p.num_heads_q;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, up_to_own_, distance);
      if (lane >= distance) up_to_own_ += other;
    }
  }

  const ForwardParams& p;
  int first_ = 0;   // of the 32 sequences
  int before_ = 0;  // tiles of the sequences before
  int up_to_own_;
};

}  // namespace onepass::cuda
