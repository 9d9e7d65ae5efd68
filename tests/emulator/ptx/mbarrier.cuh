// kernels/ptx/mbarrier.cuh on the emulator.
#pragma once

#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

ONEPASS_DEVICE void mbarrier_init(Uint64* barrier, int num_arrivals) {
  emulator::init_mbarrier(shared_address(barrier), num_arrivals);
}
ONEPASS_DEVICE void fence_mbarrier_init() {}

ONEPASS_DEVICE void mbarrier_arrive(Uint64* barrier) {
  emulator::arrive_at_mbarrier(shared_address(barrier), 0);
}
ONEPASS_DEVICE void mbarrier_arrive_expect(Uint64* barrier, int bytes) {
  emulator::arrive_at_mbarrier(shared_address(barrier), bytes);
}
ONEPASS_DEVICE void mbarrier_wait(Uint64* barrier, int parity) {
  emulator::wait_for_mbarrier(shared_address(barrier), parity);
}

}  // namespace onepass::cuda
