// Which rows a tile is, where sequences have lengths of their own: numbers count tiles that exist, sequence
// after sequence, long ones first, so that a launch ends with short tiles.
//
// A warp keeps the tiles of 32 sequences, a lane each, as a running sum. Numbers only grow, so it walks the
// sequences once for each class of lengths (over a half, a quarter, an eighth of the longest that there can
// be, and the rest); a ballot finds the sequence of a number.
#pragma once

#include "common/sequence.cuh"
#include "params.h"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// All lanes of a warp make it and call it, and get the same answers. head_group: heads of a sequence whose
/// rows follow each other, longest first (kLongestFirst).
template <int kTileM, bool kLongestFirst>
class RaggedTiles {
 public:
  int batch_idx, head, m_block;  // of the last number that was found

  ONEPASS_DEVICE RaggedTiles(const ForwardParams& params, int head_group)
      : p(params), head_group_(head_group) {
    count();
  }

  /// False past the last tile; num_tiles() is known then.
  ONEPASS_DEVICE bool find(int number) {
    for (;;) {
      const int here = __shfl_sync(0xffffffffu, up_to_own_, 31);
      if (number < before_ + here) break;
      before_ += here;
      first_ += 32;
      if (first_ >= p.batch) {
        if (length_class_ == kClasses - 1) return false;
        ++length_class_;
        first_ = 0;
      }
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
  static constexpr int kClasses = 4;

  /// Tile `i` of a sequence: a head's rows after another's or, longest rows first, row block by row block of
  /// a group of heads.
  ONEPASS_DEVICE void place(int i, int blocks) {
    if constexpr (kLongestFirst) {
      const int group = i / (head_group_ * blocks), first_head = group * head_group_;
      const int heads = min(head_group_, p.tile_heads.divisor - first_head);
      const int within = i - first_head * blocks, rank = within / heads;
      head = first_head + within - rank * heads;
      m_block = blocks - 1 - rank;
    } else {
      head = i / blocks;
      m_block = i - head * blocks;
    }
  }

  /// The tiles of 32 sequences, up to and with this lane's; none of those in another class.
  ONEPASS_DEVICE void count() {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int rows = first_ + lane < p.batch ? sequence_at(p, first_ + lane, true).seqlen_q : 0;
    const int blocks = (rows + kTileM - 1) / kTileM, most = p.m_blocks.divisor;
    const bool shorter = blocks << length_class_ <= most;  // than the class before
    const bool over = blocks << (length_class_ + 1) > most || length_class_ == kClasses - 1;
    up_to_own_ = over && (shorter || length_class_ == 0) ? blocks * p.num_heads_q : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, up_to_own_, distance);
      if (lane >= distance) up_to_own_ += other;
    }
  }

  const ForwardParams& p;
  int head_group_;
  int length_class_ = 0;
  int first_ = 0;   // of the 32 sequences
  int before_ = 0;  // tiles of the sequences before
  int up_to_own_;
};

}  // namespace onepass::cuda
