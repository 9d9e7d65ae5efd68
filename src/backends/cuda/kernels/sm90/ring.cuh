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

}  // namespace onepass::cuda
