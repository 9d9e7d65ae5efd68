// Special registers. PTX ISA 10 (tid).
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

/// threadIdx.x, read where it stands: costs an instruction there and no register before.
ONEPASS_DEVICE int thread_index_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

/// Computed once, here: not again where it is used.
ONEPASS_DEVICE void keep(Uint32& x) { asm volatile("" : "+r"(x)); }

/// What stands there is read where it is used, not early and held in registers until then.
template <class T>
ONEPASS_DEVICE void read_late(const T& x) {
  asm volatile("" ::"l"(&x) : "memory");
}

}  // namespace onepass::cuda
