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
/// point.
template <int kCount>
ONEPASS_DEVICE void pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount>
ONEPASS_DEVICE void pin(Uint32 (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

/// Low word of a matrix descriptor: where the operand starts, and the bytes between its 64-column blocks
/// where the product's width crosses them (V). Steps along the operand are additions of bytes / 16.
ONEPASS_DEVICE Uint32 descriptor_low(Uint32 shared, int block_bytes) {
  return (shared & 0x3ffff) >> 4 | static_cast<Uint32>(block_bytes >> 4) << 16;
}
/// With the constant high word: 1024 bytes from eight rows to the next eight, 128-byte swizzle.
ONEPASS_DEVICE Uint64 descriptor(Uint32 low) {
  return static_cast<Uint64>((1u << 30) | (1024 >> 4)) << 32 | low;
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
