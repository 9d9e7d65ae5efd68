// Copies of rows of bytes between global and shared memory by the tensor memory accelerator, and additions on
// the way. PTX ISA 9.7.9.25.4 (cp.async.bulk, cp.reduce.async.bulk) and 9.7.9.25.3 (their groups). sm_90.
// Addresses and sizes are multiples of 16 bytes.
#pragma once

#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// To shared memory; the barrier counts the bytes. One thread.
ONEPASS_DEVICE void bulk_load(Uint64* barrier, Uint32 shared, const void* global, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

/// From shared memory, into the thread's next group.
ONEPASS_DEVICE void bulk_store(void* global, Uint32 shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared),
               "r"(bytes)
               : "memory");
}
/// The same, added to the floats that are there.
ONEPASS_DEVICE void bulk_add(float* global, Uint32 shared, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}

ONEPASS_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until all of the thread's groups have read their shared memory.
ONEPASS_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Until all of the thread's groups are over.
ONEPASS_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Orders this thread's own accesses to any memory with those of copies.
ONEPASS_DEVICE void fence_proxy_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace onepass::cuda
