// Copies of boxes of a tensor by the tensor memory accelerator. PTX ISA 9.7.9.27 (cp.async.bulk.tensor).
// sm_90.
#pragma once

#include "params.h"
#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// What L2 is told of a copy's lines.
constexpr Uint64 kEvictFirst = 0x12F0000000000000ull;
constexpr Uint64 kEvictLast = 0x14F0000000000000ull;
constexpr Uint64 kEvictNormal = 0x1000000000000000ull;

/// `map` lies in the kernel's parameters; its first copy need not wait for it then.
ONEPASS_DEVICE void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The box at (dim, row, head, batch) to shared memory; elements outside the tensor become zeros. The barrier
/// counts the bytes. `map` lies in the kernel's parameters. One thread.
ONEPASS_DEVICE void tma_load(const TensorMap& map, Uint64* barrier, Uint32 shared, int dim, int row, int head,
                             int batch_idx, Uint64 l2_hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(&map), "r"(shared_address(barrier)), "r"(dim), "r"(row), "r"(head), "r"(batch_idx), "l"(l2_hint)
      : "memory");
}

/// The same of a tensor with blocks of columns as its third dimension: all of them.
ONEPASS_DEVICE void tma_load_rows(const TensorMap& map, Uint64* barrier, Uint32 shared, int row, int head,
                                  int batch_idx, Uint64 l2_hint) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %3, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(&map), "r"(shared_address(barrier)), "r"(0), "r"(row), "r"(head), "r"(batch_idx), "l"(l2_hint)
      : "memory");
}

/// Orders this thread's own accesses to shared memory with those of copies and of wgmma.
ONEPASS_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace onepass::cuda
