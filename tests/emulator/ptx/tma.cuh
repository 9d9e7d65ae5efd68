// kernels/ptx/tma.cuh on the emulator. A tensor map is one of tests/emulator/tensor_map.h.
#pragma once

#include "params.h"
#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"
#include "tests/emulator/tensor_map.h"

namespace onepass::cuda {

constexpr Uint64 kEvictFirst = 0, kEvictLast = 1, kEvictNormal = 2;

ONEPASS_DEVICE void prefetch_tensor_map(const TensorMap& /*map*/) {}

ONEPASS_DEVICE void tma_load(const TensorMap& map, Uint64* barrier, Uint32 shared, int dim, int row, int head,
                             int batch_idx, Uint64 /*l2_hint*/) {
  emulator::issue_tensor_copy(map, shared_address(barrier), shared, {dim, row, 0, head, batch_idx});
}

ONEPASS_DEVICE void tma_load_rows(const TensorMap& map, Uint64* barrier, Uint32 shared, int row, int head,
                                  int batch_idx, Uint64 /*l2_hint*/) {
  emulator::issue_tensor_copy(map, shared_address(barrier), shared, {0, row, 0, head, batch_idx});
}

ONEPASS_DEVICE void fence_proxy_async() {}

}  // namespace onepass::cuda
