// kernels/ptx/barrier.cuh on the emulator.
#pragma once

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

ONEPASS_DEVICE void named_barrier_sync(int id, int num_threads) { emulator::sync_barrier(id, num_threads); }
ONEPASS_DEVICE void named_barrier_arrive(int id, int num_threads) {
  emulator::arrive_at_barrier(id, num_threads);
}

}  // namespace onepass::cuda
