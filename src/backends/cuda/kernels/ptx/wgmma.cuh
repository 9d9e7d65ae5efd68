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

/// Keeps the compiler from moving accesses of registers that a product in flight reads or writes across this
/// point. Eight at a time: each statement costs compile time.
template <int kCount>
ONEPASS_DEVICE void pin(float (&x)[kCount]) {
  static_assert(kCount % 4 == 0, "fours are left after the eights");
#pragma unroll
  for (int i = 0; i + 8 <= kCount; i += 8) {
    asm volatile(""
                 : "+f"(x[i + 0]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]),
                   "+f"(x[i + 5]), "+f"(x[i + 6]), "+f"(x[i + 7])::"memory");
  }
  if constexpr (kCount % 8 != 0) {
    asm volatile(""
                 : "+f"(x[kCount - 4]), "+f"(x[kCount - 3]), "+f"(x[kCount - 2]),
                   "+f"(x[kCount - 1])::"memory");
  }
}
template <int kCount>
ONEPASS_DEVICE void pin(Uint32 (&x)[kCount]) {
  static_assert(kCount % 4 == 0, "fours are left after the eights");
#pragma unroll
  for (int i = 0; i + 8 <= kCount; i += 8) {
    asm volatile(""
                 : "+r"(x[i + 0]), "+r"(x[i + 1]), "+r"(x[i + 2]), "+r"(x[i + 3]), "+r"(x[i + 4]),
                   "+r"(x[i + 5]), "+r"(x[i + 6]), "+r"(x[i + 7])::"memory");
  }
  if constexpr (kCount % 8 != 0) {
    asm volatile(""
                 : "+r"(x[kCount - 4]), "+r"(x[kCount - 3]), "+r"(x[kCount - 2]),
                   "+r"(x[kCount - 1])::"memory");
  }
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
