// Barriers in shared memory that count arrivals and bytes. PTX ISA 9.7.13.15 (mbarrier). sm_90.
#pragma once

#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// One thread, before anybody else touches it; fence_mbarrier_init and a barrier of the block follow.
ONEPASS_DEVICE void mbarrier_init(Uint64* barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_arrivals)
               : "memory");
}
ONEPASS_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

ONEPASS_DEVICE void mbarrier_arrive(Uint64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives, and has the phase wait for `bytes` more that copies will report.
ONEPASS_DEVICE void mbarrier_arrive_expect(Uint64* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Until the phase of that parity is over. A fresh barrier counts as having finished parity 1.
ONEPASS_DEVICE void mbarrier_wait(Uint64* barrier, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over: }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace onepass::cuda
