// kernels/ptx/movmatrix.cuh on the emulator.
#pragma once

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"
#include "tests/emulator/warp_instructions.h"

namespace onepass::cuda {

ONEPASS_DEVICE Uint32 movmatrix_trans(Uint32 pair) { return emulator::movmatrix_trans(pair); }

}  // namespace onepass::cuda
