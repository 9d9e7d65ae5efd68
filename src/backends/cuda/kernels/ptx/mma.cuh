// Warp-wide matrix product m16n8k16 with f32 accumulators. PTX ISA 9.7.14.5.
// fragment_maps.h says which element each register holds.
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
