// The functions of the instruction set in use.
#pragma once

#include "backends/cpu/simd/kernels.h"

namespace onepass::cpu {

/// The best that this machine runs, or what force_simd_instruction_set chose.
const KernelTable& active_kernels();

}  // namespace onepass::cpu
