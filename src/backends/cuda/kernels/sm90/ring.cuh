// Where one stands in a ring of buffers in shared memory.
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

/// Position in a ring of kCount buffers, and the parity of its round.
template <int kCount>
struct RingPosition {
  int index = 0, parity = 0;
  ONEPASS_DEVICE void advance() {
    if (kCount == 1 || ++index == kCount) {
      index = 0;
      parity ^= 1;
    }
  }
};

/// The same for a ring of one or two, in one register.
template <int kCount>
struct Round {
  static_assert(kCount == 1 || kCount == 2, "the bits of one number tell both");
  int count = 0;
  ONEPASS_DEVICE void advance() { ++count; }
  ONEPASS_DEVICE int index() const { return kCount == 1 ? 0 : count & 1; }
  ONEPASS_DEVICE int parity() const { return kCount == 1 ? count & 1 : count >> 1 & 1; }
};

}  // namespace onepass::cuda
