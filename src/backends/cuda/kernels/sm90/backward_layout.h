// backward_layout.h - sizes of the sm90 backward kernel's shared memory, for the host that asks for it and
// the kernel that divides it. Read by g++ and by NVRTC alike.
#pragma once

#include "sm90/layout.h"

namespace onepass::cuda {

constexpr int kBackwardStages = 2;      // of Q, dO, dS and dQ, which go round together
constexpr int kBackwardWorkPlaces = 2;  // tiles that are told at a time: this one and the next
constexpr int kBackwardWorkBytes = 64;  // what is told of a tile

/// Where the parts of a block's shared memory begin, all of them where the swizzle does but the last three.
/// tile_m queries a step, tile_n keys.
template <class T>
struct BackwardSm90Layout {
  T keys, values, queries, dout, dscores, dq, lse, delta, barriers, end;
};

/// In 64 bits of a kernel's name, which can state any sizes; a kernel that compiles has small ones.
template <class T>
ONEPASS_HOST_DEVICE constexpr BackwardSm90Layout<T> backward_sm90_layout(int tile_m, int tile_n, int head_dim,
                                                                         int head_dim_v) {
  const T rows_m = tile_m, rows_n = tile_n;
  const T width = column_blocks(head_dim) * kBlockColumns,
          width_v = column_blocks(head_dim_v) * kBlockColumns;
  BackwardSm90Layout<T> at{};
  at.values = at.keys + rows_n * width * 2;
  at.queries = at.values + rows_n * width_v * 2;
  at.dout = at.queries + kBackwardStages * rows_m * width * 2;
  at.dscores = at.dout + kBackwardStages * rows_m * width_v * 2;
  at.dq = at.dscores + kBackwardStages * rows_m * rows_n * 2;
  at.lse = at.dq + kBackwardStages * rows_m * width * 4;
  at.delta = at.lse + kBackwardStages * rows_m * 4;
  at.barriers = at.delta + kBackwardStages * rows_m * 4;
  // Full and empty for Q, dO, dQ and the tiles, full for K and V, one empty for both, and one more.
  constexpr int kBarriers = 6 * kBackwardStages + 2 * kBackwardWorkPlaces + 4;
  at.end = at.barriers + 8 * kBarriers + kBackwardWorkPlaces * kBackwardWorkBytes;
  return at;
}

}  // namespace onepass::cuda
