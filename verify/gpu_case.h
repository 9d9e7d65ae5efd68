// A case on an NVIDIA GPU: its tensors copied there, run, copied back and judged like any other.
#pragma once

#include "verify/check.h"

namespace onepass::verify {

/// As check_case, with every tensor in memory of GPU `device_idx` and guards of poison around each.
/// @throws what plan() and run() throw; EnvironmentError without a GPU.
CheckReport check_case_on_gpu(const Case& c, int device_idx = 0);

}  // namespace onepass::verify
