// Registers to global memory and back, and what orders that among thread blocks. PTX ISA 9.7.9.8 (ld),
// 9.7.9.11 (st), 9.7.13.5 (atom), 9.7.13.6 (red). A plain assignment of four words that were in registers for a while becomes four
// stores.
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

/// Where `inside` holds: without a branch.
ONEPASS_DEVICE void store_global_if(bool inside, void* address, const uint4& words) {
  asm volatile(
      "{ .reg .pred inside; setp.ne.u32 inside, %5, 0;\n"
      "@inside st.global.v4.u32 [%0], {%1,%2,%3,%4}; }" ::"l"(address),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(static_cast<int>(inside))
      : "memory");
}
ONEPASS_DEVICE void store_global_if(bool inside, void* address, Uint32 word) {
  asm volatile(
      "{ .reg .pred inside; setp.ne.u32 inside, %2, 0;\n"
      "@inside st.global.u32 [%0], %1; }" ::"l"(address),
      "r"(word), "r"(static_cast<int>(inside))
      : "memory");
}
ONEPASS_DEVICE void store_global(void* address, const uint4& words) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
ONEPASS_DEVICE void store_global(void* address, const uint2& words) {
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(address), "r"(words.x), "r"(words.y) : "memory");
}
ONEPASS_DEVICE void store_global(void* address, Uint32 pair) { *static_cast<Uint32*>(address) = pair; }
ONEPASS_DEVICE void store_global(void* address, unsigned short element) {
  *static_cast<unsigned short*>(address) = element;
}

/// What nobody writes while the kernel runs, and nobody here reads again. In the order of the text, so that all loads
/// of a thread can be under way before the first one's words are used.
ONEPASS_DEVICE uint4 load_once(const void* address) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(address));
  return words;
}

/// Past L1, which keeps no pace with what other thread blocks write.
ONEPASS_DEVICE float load_l2(const float* address) {
  float x;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(address) : "memory");
  return x;
}
ONEPASS_DEVICE float4 load_l2(const float4* address) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(address)
               : "memory");
  return x;
}

/// The value before. What this thread has done or seen before, threads of the GPU that add later may rely on.
ONEPASS_DEVICE Uint64 atomic_add_acq_rel(Uint64* address, Uint64 value) {
  Uint64 before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(address), "l"(value)
               : "memory");
  return before;
}

/// Until some thread of the GPU has raised a count to this value or past it. What it had done or seen before,
/// the caller may rely on.
ONEPASS_DEVICE void wait_for_count(const int* address, int value) {
  int x;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(address) : "memory");
  } while (x < value);
}
ONEPASS_DEVICE void raise_count(int* address, int value) {
  asm volatile("red.release.gpu.global.max.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace onepass::cuda
