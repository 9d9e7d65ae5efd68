// Which instruction sets the SIMD backend is compiled for. Included before any Highway header.
#pragma once

// Our register blocks are arrays of vectors, which types without a size (SVE, RISC-V V) cannot form; such
// machines run the NEON or the emulated version.
#define ONEPASS_UNSIZED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#ifndef HWY_DISABLED_TARGETS
#ifdef ONEPASS_BEST_TARGET  // and what every machine runs; the better a target of x86, the lower its bit
#define HWY_DISABLED_TARGETS (ONEPASS_UNSIZED_TARGETS | HWY_SSSE3 | HWY_SSE4 | (ONEPASS_BEST_TARGET - 1))
#else
#define HWY_DISABLED_TARGETS ONEPASS_UNSIZED_TARGETS
#endif
#endif
