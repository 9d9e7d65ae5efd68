// kernels/ptx/math.cuh on the CPU: the same functions with their treatment of subnormal numbers, correctly rounded
// or nearly so where the instructions are approximate.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"
#include "support/float_types.h"

namespace onepass::cuda {

ONEPASS_DEVICE float infinity() { return std::numeric_limits<float>::infinity(); }

/// .ftz
ONEPASS_DEVICE float flush_subnormal(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

ONEPASS_DEVICE float exp2_approx(float x) { return flush_subnormal(std::exp2(flush_subnormal(x))); }
ONEPASS_DEVICE float log2_approx(float x) { return std::log2(flush_subnormal(x)); }
ONEPASS_DEVICE float reciprocal_approx(float x) { return flush_subnormal(1.0f / flush_subnormal(x)); }

template <>
struct ElementTraits<Bf16> {
  ONEPASS_DEVICE static Uint32 pack(float low, float high) {
    return static_cast<Uint32>(float_to_bf16(high)) << 16 | float_to_bf16(low);
  }
  ONEPASS_DEVICE static float to_float(Bf16 x) { return bf16_to_float(x.bits); }
};

template <>
struct ElementTraits<F16> {
  ONEPASS_DEVICE static Uint32 pack(float low, float high) {
    return static_cast<Uint32>(float_to_f16(high)) << 16 | float_to_f16(low);
  }
  ONEPASS_DEVICE static float to_float(F16 x) { return f16_to_float(x.bits); }
};

}  // namespace onepass::cuda
