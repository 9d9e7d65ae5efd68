// kernels/ptx/global.cuh on the emulator.
#pragma once

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

template <class Words>
ONEPASS_DEVICE void store_global(void* address, const Words& words) {
  *static_cast<Words*>(address) = words;
}

ONEPASS_DEVICE uint4 load_once(const void* address) { return *static_cast<const uint4*>(address); }
template <class T>
ONEPASS_DEVICE T load_l2(const T* address) {
  return *address;
}
ONEPASS_DEVICE Uint64 atomic_add_acq_rel(Uint64* address, Uint64 value) {
  const Uint64 before = *address;
  *address += value;
  return before;
}

ONEPASS_DEVICE void wait_for_count(const int* address, int value) {
  emulator::wait_for_count(address, value);
}
ONEPASS_DEVICE void raise_count(int* address, int value) {
  *address = max(*address, value);
  emulator::wake_for_counts();
}
template <class Words>
ONEPASS_DEVICE void store_global_if(bool inside, void* address, const Words& words) {
  if (inside) store_global(address, words);
}

}  // namespace onepass::cuda
