// kernels/ptx/cp_async.cuh on the emulator.
#pragma once

#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

template <int kBytes>
ONEPASS_DEVICE void cp_async(Uint32 shared, const void* global, int valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  emulator::issue_copy(shared, global, kBytes, valid);
}

ONEPASS_DEVICE void cp_async_commit() { emulator::commit_copies(); }

template <int kPending>
ONEPASS_DEVICE void cp_async_wait() {
  emulator::wait_copies(kPending);
}

ONEPASS_DEVICE void cp_async_mbarrier_arrive(Uint64* barrier) {
  emulator::arrive_after_copies(shared_address(barrier));
}

}  // namespace onepass::cuda
