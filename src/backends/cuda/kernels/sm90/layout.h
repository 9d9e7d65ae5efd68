// layout.h - sizes of the sm90 kernels' shared memory, for the host that asks for it and the kernel that
// divides it. Read by g++ and by NVRTC alike.
#pragma once

#include "common/host_device.h"

namespace onepass::cuda {

/// Columns of a block of a tile: rows of 128 bytes, which the tensor memory accelerator writes swizzled.
constexpr int kBlockColumns = 64;
/// The swizzle repeats every eight rows of 128 bytes; every tile begins on such a boundary.
constexpr int kSwizzleBytes = 1024;

ONEPASS_HOST_DEVICE constexpr int column_blocks(int head_dim) {
  return (head_dim + kBlockColumns - 1) / kBlockColumns;
}

/// Of a tile: whole column blocks, each with all its rows.
ONEPASS_HOST_DEVICE constexpr int sm90_tile_bytes(int rows, int head_dim) {
  return rows * column_blocks(head_dim) * kBlockColumns * 2;
}

constexpr int kWorkBytes = 68;  // what is told of a tile
constexpr int kWorkPlaces = 3;  // tiles that are told at a time: the last one, this one and the next

/// Barriers of eight bytes (full and empty for each Q, K and V buffer and for each tile, and one more), and
/// what is told of the tiles.
ONEPASS_HOST_DEVICE constexpr int sm90_barrier_bytes(int stages, int query_stages) {
  return 8 * (2 * query_stages + 4 * stages + 2 * kWorkPlaces + 1) + (kWorkPlaces * kWorkBytes + 7) / 8 * 8;
}

/// Of a thread block. 64 bits, because a kernel's name can state any sizes.
ONEPASS_HOST_DEVICE constexpr long long sm90_shared_bytes(int tile_m, int tile_n, int head_dim,
                                                          int head_dim_v, int stages, int query_stages) {
  const long long query_bytes = sm90_tile_bytes(tile_m, head_dim);
  const long long key_value_bytes = sm90_tile_bytes(tile_n, head_dim) + sm90_tile_bytes(tile_n, head_dim_v);
  return query_stages * query_bytes + stages * key_value_bytes + sm90_barrier_bytes(stages, query_stages);
}

}  // namespace onepass::cuda
