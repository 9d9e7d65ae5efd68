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
ONEPASS_DEVICE Uint64 atomic_add_acq_rel(Uint64* address, Uint64 value) {
  const Uint64 before = *address;
  *address += value;
  return before;
}

}  // namespace onepass::cuda
