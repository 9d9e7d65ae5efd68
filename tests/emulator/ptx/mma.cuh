// kernels/ptx/mma.cuh on the emulator.
#pragma once

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"
#include "tests/emulator/warp_instructions.h"

namespace onepass::cuda {

template <class Element>
ONEPASS_DEVICE void mma_m16n8k16(float (&d)[4], const Uint32 (&a)[4], Uint32 b0, Uint32 b1);

template <>
ONEPASS_DEVICE void mma_m16n8k16<Bf16>(float (&d)[4], const Uint32 (&a)[4], Uint32 b0, Uint32 b1) {
  emulator::mma_m16n8k16_bf16(d, a, b0, b1);
}

template <>
ONEPASS_DEVICE void mma_m16n8k16<F16>(float (&d)[4], const Uint32 (&a)[4], Uint32 b0, Uint32 b1) {
  emulator::mma_m16n8k16_f16(d, a, b0, b1);
}

}  // namespace onepass::cuda
