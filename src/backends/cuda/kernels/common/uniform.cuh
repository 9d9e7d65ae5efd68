// Numbers that all lanes of a warp share.
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

/// x of lane 0. The compiler then knows that all lanes share it, and can keep it in a register of the warp instead of
/// one of each thread. All lanes.
ONEPASS_DEVICE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

}  // namespace onepass::cuda
