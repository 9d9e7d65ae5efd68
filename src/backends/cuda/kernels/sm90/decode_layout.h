// decode_layout.h - sizes of sm90_decode's shared memory, for the host that asks for it and the kernel that
// divides it. Read by g++ and by NVRTC alike.
#pragma once

#include "sm90/layout.h"

namespace onepass::cuda {

/// Fewest keys of a box: the swizzle repeats after as many rows.
constexpr int kFewestBoxKeys = 8;

/// Columns of a row in units of 16 bits, in which rows of any element type are copied.
ONEPASS_HOST_DEVICE constexpr int decode_columns(int head_dim, int element_bytes) {
  return head_dim * element_bytes / 2;
}

/// Whether one copy takes whole rows of a box of keys, which lie box after box then, each in blocks of 64
/// columns with all its keys. Otherwise copies take 64 columns each, and blocks have all keys of the tile.
ONEPASS_HOST_DEVICE constexpr bool decode_copies_rows(int columns) { return columns % kBlockColumns == 0; }

/// A slot of the ring holds a tile of K or one of V.
ONEPASS_HOST_DEVICE constexpr int decode_slot_bytes(int tile_n, int columns_k, int columns_v) {
  const int blocks_k = column_blocks(columns_k), blocks_v = column_blocks(columns_v);
  return sm90_tile_bytes(tile_n, kBlockColumns * (blocks_k > blocks_v ? blocks_k : blocks_v));
}

/// Floats of a row of O where warps join theirs: no bank conflicts.
ONEPASS_HOST_DEVICE constexpr int decode_joint_pitch(int head_dim_v) { return head_dim_v + 4; }

/// What `warps` warps join: f32 rows of O, and of each its maximum and its sum.
ONEPASS_HOST_DEVICE constexpr long long decode_joint_bytes(int warps, int tile_m, int head_dim_v) {
  return 4LL * warps * tile_m * (decode_joint_pitch(head_dim_v) + 2);
}

/// A full and an empty barrier for each slot, and what one thread tells the others.
ONEPASS_HOST_DEVICE constexpr int decode_control_bytes(int slots) { return 8 * (2 * slots + 1); }

/// Floats of a slot, where pages have factors: of its keys where they are gathered, else of its boxes.
ONEPASS_HOST_DEVICE constexpr int decode_slot_factors(bool page_factors, bool gathers, int tile_n) {
  return !page_factors ? 0 : gathers ? tile_n : tile_n / kFewestBoxKeys;
}

/// Of a thread block: ring, joint rows, factors, control. One that takes a single tile joins in the ring, and
/// joint_bytes is 0. 64 bits, because a kernel's name can state any sizes.
ONEPASS_HOST_DEVICE constexpr long long decode_shared_bytes(int tile_n, int columns_k, int columns_v,
                                                            int slots, long long joint_bytes,
                                                            int slot_factors) {
  return static_cast<long long>(slots) *
             (decode_slot_bytes(tile_n, columns_k, columns_v) + 4 * slot_factors) +
         joint_bytes + decode_control_bytes(slots);
}

/// The most blocks of a cluster that every GPU of compute capability 9.0 runs.
constexpr int kClusterBlocks = 8;

/// Warps that copy: one asks for boxes, of pages that no box fits some gather rows (decode_gather.cuh).
constexpr int kGatherWarps = 2;
ONEPASS_HOST_DEVICE constexpr int decode_producers(bool gathers) { return gathers ? kGatherWarps : 1; }

}  // namespace onepass::cuda
