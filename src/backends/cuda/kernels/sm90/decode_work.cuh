// Of a batch whose keys are shared out (decode_shares.h): how much work its sequences are, and where a share
// begins. Every warp finds out on its own, 32 sequences at a time.
#pragma once

#include "common/sequence.cuh"
#include "common/tile_range.h"
#include "ptx/types.cuh"
#include "sm90/decode_shares.h"

namespace onepass::cuda {

/// Tiles of keys that some row of a sequence sees.
struct SequenceTiles {
  int begin, end;
  ONEPASS_DEVICE int count() const { return max(0, end - begin); }
};

template <int kTileN>
ONEPASS_DEVICE SequenceTiles sequence_tiles(const ForwardParams& p, const Sequence& s) {
  const BasicTileRange<int> range =
      tile_range(narrow_key_band(p, s), s.seqlen_k, 0, s.seqlen_q, kTileN);
  return {range.n_block_min, range.n_block_max};
}

ONEPASS_DEVICE int warp_sum(int x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    x += static_cast<int>(__shfl_xor_sync(0xffffffffu, static_cast<Uint32>(x), distance));
  }
  return x;
}

/// units_at(batch): of a sequence. All lanes.
template <class UnitsAt>
ONEPASS_DEVICE int total_units(int batch, UnitsAt units_at) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  int units = 0;
#pragma unroll 4  // loads of lengths in flight
  for (int first = 0; first < batch; first += 32) {
    if (first + lane < batch) units += units_at(first + lane);
  }
  return warp_sum(units);
}

/// A sequence, and the unit at which it starts.
struct SequenceStart {
  int batch, unit;
};

/// The first sequence that ends after this unit; one past the last when there is none.
template <class UnitsAt>
ONEPASS_DEVICE SequenceStart find_sequence(int batch, UnitsAt units_at, int unit) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  SequenceStart start = {0, 0};
  for (int first = 0; first < batch; first += 32) {
    const int mine = first + lane < batch ? units_at(first + lane) : 0;
    int end = mine;  // of this lane's sequence, by and by
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_sync(0xffffffffu, end, lane - distance);
      if (lane >= distance) end += before;
    }
    const bool passed = first + lane < batch && start.unit + end <= unit;
    const int num_passed = warp_sum(passed ? 1 : 0), units = warp_sum(passed ? mine : 0);
    start.batch += num_passed;
    start.unit += units;
    if (num_passed < 32) break;
  }
  return start;
}

}  // namespace onepass::cuda
