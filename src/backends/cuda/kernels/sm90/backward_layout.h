// backward_layout.h - sizes of the sm90 backward kernel's shared memory, for the host that asks for it and
// the kernel that divides it. Read by g++ and by NVRTC alike.
#pragma once

#include "sm90/layout.h"

namespace onepass::cuda {

constexpr int kBackwardWideKeys = 64;    // of a tile of wide heads, whose columns the warpgroups divide
constexpr int kBackwardScoreStages = 2;  // of dS
constexpr int kBackwardWorkPlaces = 2;   // tiles that are told at a time: this one and the next
constexpr int kBackwardWorkBytes = 64;   // what is told of a tile

/// Of Q, dO and dQ, which go round together.
ONEPASS_HOST_DEVICE constexpr int backward_stages(int tile_n) { return tile_n == kBackwardWideKeys ? 1 : 2; }

/// Columns of a tile in shared memory: whole blocks, as many for each warpgroup where they divide them.
ONEPASS_HOST_DEVICE constexpr int backward_columns(int head_dim, int tile_n) {
  const int blocks = column_blocks(head_dim);
  return (tile_n == kBackwardWideKeys ? (blocks + 1) / 2 * 2 : blocks) * kBlockColumns;
}

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
  const T width = backward_columns(head_dim, tile_n), width_v = backward_columns(head_dim_v, tile_n);
  const int stages = backward_stages(tile_n);
  BackwardSm90Layout<T> at{};
  at.values = at.keys + rows_n * width * 2;
  at.queries = at.values + rows_n * width_v * 2;
  at.dout = at.queries + stages * rows_m * width * 2;
  at.dscores = at.dout + stages * rows_m * width_v * 2;
  at.dq = at.dscores + kBackwardScoreStages * rows_m * rows_n * 2;
  at.lse = at.dq + stages * rows_m * width * 4;
  at.delta = at.lse + stages * rows_m * 4;
  at.barriers = at.delta + stages * rows_m * 4;
  // Full and empty for Q, dO, dQ and the tiles, full for K and V, one empty for both, and one more.
  const int barriers = 6 * stages + 2 * kBackwardWorkPlaces + 4;
  at.end = at.barriers + 8 * barriers + kBackwardWorkPlaces * kBackwardWorkBytes;
  return at;
}

}  // namespace onepass::cuda
