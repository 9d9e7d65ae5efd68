// kernels/ptx/special.cuh on the emulator.
#pragma once

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

ONEPASS_DEVICE int thread_index_again() { return static_cast<int>(threadIdx.x); }
ONEPASS_DEVICE void keep(Uint32& /*x*/) {}

template <class T>
ONEPASS_DEVICE void read_late(const T& /*x*/) {}

}  // namespace onepass::cuda
