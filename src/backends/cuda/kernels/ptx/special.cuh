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

}  // namespace onepass::cuda
