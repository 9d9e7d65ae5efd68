// kernels/ptx/wgmma.cuh on the emulator. The products are tests/emulator/wgmma.h.
#pragma once

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"
#include "tests/emulator/wgmma.h"

namespace onepass::cuda {

ONEPASS_DEVICE void wgmma_fence() {}
ONEPASS_DEVICE void wgmma_commit() { emulator::commit_wgmma(); }
template <int kPending>
ONEPASS_DEVICE void wgmma_wait() {
  emulator::wait_wgmma(kPending);
}

template <class T, int kCount>
ONEPASS_DEVICE void pin(T (&)[kCount]) {}
template <int kCount>
ONEPASS_DEVICE void forget(float (&x)[kCount]) {
  for (float& value : x) value = __builtin_nanf("");
}

ONEPASS_DEVICE Uint32 descriptor_low(Uint32 shared, int block_bytes) {
  return (shared & 0x3ffff) >> 4 | static_cast<Uint32>(block_bytes >> 4) << 16;
}

template <int kRegisters>
ONEPASS_DEVICE void take_registers() {}
template <int kRegisters>
ONEPASS_DEVICE void give_registers() {}

}  // namespace onepass::cuda
