// What surrounds the asynchronous matrix products of a warpgroup. PTX ISA 9.7.15 (wgmma). sm_90a. The
// products themselves, whose operand list depends on a tile width, are written into Spec (wgmma_text.cpp).
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

ONEPASS_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ONEPASS_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most kPending groups are in flight.
template <int kPending>
ONEPASS_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// pin(x): keeps the compiler from moving accesses of registers that a product in flight reads or writes across
/// this point. Eight at a time: each statement costs compile time. `kind`: the operand's letter in asm.
#define ONEPASS_DEFINE_PIN(Type, kind)                                                               \
  template <int kCount>                                                                              \
  ONEPASS_DEVICE void pin(Type(&x)[kCount]) {                                                        \
    static_assert(kCount % 4 == 0, "fours are left after the eights");                               \
    _Pragma("unroll") for (int i = 0; i + 8 <= kCount; i += 8) {                                     \
      asm volatile(""                                                                                \
                   : kind(x[i + 0]), kind(x[i + 1]), kind(x[i + 2]), kind(x[i + 3]), kind(x[i + 4]), \
                     kind(x[i + 5]), kind(x[i + 6]), kind(x[i + 7])::"memory");                      \
    }                                                                                                \
    if constexpr (kCount % 8 != 0) {                                                                 \
      asm volatile(""                                                                                \
                   : kind(x[kCount - 4]), kind(x[kCount - 3]), kind(x[kCount - 2]),                  \
                     kind(x[kCount - 1])::"memory");                                                 \
    }                                                                                                \
  }
ONEPASS_DEFINE_PIN(float, "+f")
ONEPASS_DEFINE_PIN(Uint32, "+r")
#undef ONEPASS_DEFINE_PIN

/// x is undefined from here on: what it held need not be kept for a product that starts anew, which the
/// compiler takes for one that reads it.
template <int kCount>
ONEPASS_DEVICE void forget(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(x[i])::"memory");
}

/// Low word of a matrix descriptor (the high word is constant, wgmma_text.h): where the operand starts, and
/// the bytes between its 64-column blocks where the product's width crosses them (V). Steps along the operand
/// are additions of bytes / 16.
ONEPASS_DEVICE Uint32 descriptor_low(Uint32 shared, int block_bytes) {
  return (shared & 0x3ffff) >> 4 | static_cast<Uint32>(block_bytes >> 4) << 16;
}

/// Registers of each thread of a warpgroup from here on; all its warps execute it.
template <int kRegisters>
ONEPASS_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
ONEPASS_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace onepass::cuda
