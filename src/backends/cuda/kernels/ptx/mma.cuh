// Warp-wide matrix product m16n8k16 with f32 accumulators. PTX ISA 9.7.14.5.
//
// Fragment maps, lane l of 32: accumulator element e of 4 is row l / 4 + 8 * (e / 2), column 2 * (l % 4) + e % 2.
// Operand A (16 x 16): register r of 4 holds two neighbours of row l / 4 + 8 * (r % 2), column 2 * (l % 4) +
// 8 * (r / 2). Operand B (16 x 8): register r of 2 holds rows 2 * (l % 4) + 8 * r and the next, column l / 4.
// An accumulator pair (n8 tiles 2k and 2k + 1) packed to 16 bits therefore is operand A of k16 step k.
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

template <class Element>
ONEPASS_DEVICE void mma_m16n8k16(float (&d)[4], const Uint32 (&a)[4], Uint32 b0, Uint32 b1);

template <>
ONEPASS_DEVICE void mma_m16n8k16<Bf16>(float (&d)[4], const Uint32 (&a)[4], Uint32 b0, Uint32 b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
ONEPASS_DEVICE void mma_m16n8k16<F16>(float (&d)[4], const Uint32 (&a)[4], Uint32 b0, Uint32 b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace onepass::cuda
