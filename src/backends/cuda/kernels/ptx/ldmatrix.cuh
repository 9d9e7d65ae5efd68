// Shared memory to mma fragments and back. PTX ISA 9.7.14.5.15 (ldmatrix), 9.7.14.5.16 (stmatrix), 9.7.9.8 (ld),
// 9.7.9.11 (st).
// fragment_maps.h says which row each lane addresses.
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

ONEPASS_DEVICE Uint32 shared_address(const void* p) {
  return static_cast<Uint32>(__cvta_generic_to_shared(p));
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
ONEPASS_DEVICE void ldmatrix_x4(Uint32 (&r)[4], Uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// The same, each matrix transposed on the way.
ONEPASS_DEVICE void ldmatrix_x4_trans(Uint32 (&r)[4], Uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// Two 16-bit elements to shared memory, eight, or one.
ONEPASS_DEVICE void store_shared(Uint32 address, Uint32 pair) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
}
ONEPASS_DEVICE void store_shared(Uint32 address, const uint4& words) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
ONEPASS_DEVICE void store_shared(Uint32 address, unsigned short element) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(element) : "memory");
}

ONEPASS_DEVICE void store_shared(Uint32 address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

/// Four 8x8 matrices of 16-bit elements, each transposed on the way; lane l gives the address of row l % 8 of
/// matrix l / 8 in shared memory. sm_90.
ONEPASS_DEVICE void stmatrix_x4_trans(Uint32 address, const Uint32* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

ONEPASS_DEVICE float2 load_shared_pair(Uint32 address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}

}  // namespace onepass::cuda
