// kernels/ptx/global.cuh on the emulator.
#pragma once

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

template <class Words>
ONEPASS_DEVICE void store_global(void* address, const Words& words) {
  *static_cast<Words*>(address) = words;
}

}  // namespace onepass::cuda
