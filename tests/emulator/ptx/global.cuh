// kernels/ptx/global.cuh on the emulator.
#pragma once

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

template <class Words>
ONEPASS_DEVICE void store_global(void* address, const Words& words) {
  *static_cast<Words*>(address) = words;
}

template <class T>
ONEPASS_DEVICE T load_l2(const T* address) {
  return *address;
}
ONEPASS_DEVICE Uint32 atomic_add_acq_rel(Uint32* address, Uint32 value) { return atomicAdd(address, value); }

}  // namespace onepass::cuda
