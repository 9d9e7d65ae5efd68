// Scores of a warp from the tiles that its warpgroup's wgmma read: 16 query rows x 16 keys by mma.sync, whose
// accumulators are laid out like a warp's part of wgmma's.
#pragma once

#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// Of 16 bytes in a row of 128 with the 128-byte swizzle: `chunk` counts them from the row's start, `row`
/// from one that is a multiple of eight.
ONEPASS_DEVICE Uint32 swizzled(Uint32 row_address, int row, int chunk) {
  return row_address + ((chunk ^ row) & 7) * 16;
}

/// The same in a tile whose blocks of 64 columns are kBlockBytes apart.
template <int kBlockBytes>
ONEPASS_DEVICE Uint32 swizzled(Uint32 tile, int row, int chunk) {
  return swizzled(tile + chunk / 8 * kBlockBytes + row * 128, row, chunk);
}

/// q, k: shared addresses of the first row of 16, in the first block of columns. d[half]: keys 8 * half and
/// on, as in fragment_maps.h.
template <class Element, int kDimSteps, int kQueryBlockBytes, int kKeyBlockBytes>
ONEPASS_DEVICE void warp_scores(Uint32 q, Uint32 k, float (&d)[2][4]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int row = lane & 15, key = (lane & 7) + lane / 16 * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) d[i >> 2][i & 3] = 0.0f;
#pragma unroll 1  // rare, so short
  for (int step = 0; step < kDimSteps; ++step) {
    Uint32 a[4], b[4];
    ldmatrix_x4(a, swizzled<kQueryBlockBytes>(q, row, 2 * step + lane / 16));
    ldmatrix_x4(b, swizzled<kKeyBlockBytes>(k, key, 2 * step + (lane / 8 & 1)));
    mma_m16n8k16<Element>(d[0], a, b[0], b[1]);
    mma_m16n8k16<Element>(d[1], a, b[2], b[3]);
  }
}

}  // namespace onepass::cuda
