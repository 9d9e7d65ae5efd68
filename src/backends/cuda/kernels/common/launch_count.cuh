// A count that the thread blocks of a launch share, in 8 bytes of a workspace that nobody zeroes: the launch's
// id in the high word, the count in the low one. Whatever the bytes held before will do, but for this very id
// (one chance in 2^32 with leftovers of others). A replayed launch has the id of the first one, so the last
// block to come frees the bytes.
#pragma once

#include "ptx/global.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// Before a block's first count_up: makes the bytes this launch's.
ONEPASS_DEVICE void claim_count(unsigned long long* word, Uint32 launch_id) {
  const Uint64 mine = static_cast<Uint64>(launch_id) << 32;
  Uint64 seen = *static_cast<volatile unsigned long long*>(word);
  while (seen >> 32 != launch_id) seen = atomicCAS(word, seen, mine);
}

/// The count before this call. What the thread has done or seen before, those that count later may rely on;
/// for that the memory model wants all accesses to be of the same eight bytes.
ONEPASS_DEVICE int count_up(unsigned long long* word) {
  return static_cast<int>(static_cast<Uint32>(atomic_add_acq_rel(word, 1)));  // never carries
}

/// By the block whose count is the last: leaves the bytes to any later launch.
ONEPASS_DEVICE void free_count(unsigned long long* word) {
  *static_cast<volatile unsigned long long*>(word) = 0;
}

}  // namespace onepass::cuda
