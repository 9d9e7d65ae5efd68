// Asynchronous copies from global to shared memory. PTX ISA 9.7.9.25 (cp.async).
#pragma once

#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// Copies kBytes (4, 8 or 16) and zero-fills past `valid` bytes; global memory past `valid` is not read.
template <int kBytes>
ONEPASS_DEVICE void cp_async(Uint32 shared, const void* global, int valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "r"(valid)
                 : "memory");
  }
}

ONEPASS_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kPending of this thread's groups are unfinished.
template <int kPending>
ONEPASS_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Arrives at an mbarrier for this thread, like any arrival that it counts, once all copies that the thread has
/// issued so far have landed. sm_90 with the others of mbarrier.cuh.
ONEPASS_DEVICE void cp_async_mbarrier_arrive(Uint64* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

}  // namespace onepass::cuda
