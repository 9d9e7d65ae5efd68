// Registers to global memory. PTX ISA 9.7.9.11 (st). A plain assignment of four words that were in registers
// for a while becomes four stores.
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
ONEPASS_DEVICE void store_global(void* address, Uint32 pair) { *static_cast<Uint32*>(address) = pair; }
ONEPASS_DEVICE void store_global(void* address, unsigned short element) {
  *static_cast<unsigned short*>(address) = element;
}

}  // namespace onepass::cuda
