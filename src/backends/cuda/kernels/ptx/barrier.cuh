// Barriers for a part of a thread block. PTX ISA 9.7.13.1 (bar).
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

/// Waits until num_threads threads (whole warps) have come to barrier `id` (1 to 15; __syncthreads is 0), and orders
/// their accesses to memory.
ONEPASS_DEVICE void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

/// Counts this warp as come and goes on.
ONEPASS_DEVICE void named_barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

}  // namespace onepass::cuda
