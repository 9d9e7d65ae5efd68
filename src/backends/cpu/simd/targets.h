// Which instruction sets the SIMD backend is compiled for. Included before any Highway header.
#pragma once

// Our register blocks are arrays of vectors, which types without a size (SVE, RISC-V V) cannot form; such
// machines run the NEON or the emulated version.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
