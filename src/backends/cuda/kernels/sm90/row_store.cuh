// Rows of an accumulator to global memory: a quad, which holds a row's columns by twos, exchanges them so that
// each lane stores 16 bytes.
#pragma once

#include "ptx/global.cuh"
#include "ptx/math.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// Word i of lane j for word j of lane i, among the four lanes of a quad.
ONEPASS_DEVICE void transpose_quad(Uint32 (&word)[4], int quad) {
  const bool odd = quad & 1, high = quad & 2;
  const Uint32 a = __shfl_xor_sync(0xffffffffu, odd ? word[0] : word[1], 1);
  const Uint32 b = __shfl_xor_sync(0xffffffffu, odd ? word[2] : word[3], 1);
  (odd ? word[0] : word[1]) = a;
  (odd ? word[2] : word[3]) = b;
  const Uint32 c = __shfl_xor_sync(0xffffffffu, high ? word[0] : word[2], 2);
  const Uint32 d = __shfl_xor_sync(0xffffffffu, high ? word[1] : word[3], 2);
  (high ? word[0] : word[2]) = c;
  (high ? word[1] : word[3]) = d;
}

/// packed(i): columns 8 i + 2 (lane % 4) and the next of the row at `out`, kColumns columns of it. All lanes of
/// a warp; `inside`: whether this lane's row is stored.
template <int kColumns, class Packed>
ONEPASS_DEVICE void store_row(unsigned short* out, bool inside, const Packed& packed) {
  const int quad = static_cast<int>(threadIdx.x) & 3;
#pragma unroll
  for (int first = 0; first + 4 <= kColumns / 8; first += 4) {  // four tiles of 8 columns
    Uint32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = packed(first + i);
    transpose_quad(word, quad);
    store_global_if(inside, out + 8 * (first + quad), uint4{word[0], word[1], word[2], word[3]});
  }
#pragma unroll
  for (int i = kColumns / 32 * 4; i < kColumns / 8; ++i) {
    store_global_if(inside, out + 8 * i + 2 * quad, packed(i));
  }
}

}  // namespace onepass::cuda
