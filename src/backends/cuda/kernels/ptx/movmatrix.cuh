// Transposes an 8x8 matrix held by a warp. PTX ISA 9.7.14.5.18 (movmatrix).
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

/// `pair`: elements 2 (lane % 4) and the next of row lane / 4, 16 bits each; the same of the transposed
/// matrix comes back. All lanes.
ONEPASS_DEVICE Uint32 movmatrix_trans(Uint32 pair) {
  Uint32 d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(pair));
  return d;
}

}  // namespace onepass::cuda
