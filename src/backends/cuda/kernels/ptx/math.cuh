// Scalar instructions of the softmax. PTX ISA: ex2, lg2, rcp (9.7.3), cvt (9.7.9).
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

ONEPASS_DEVICE float infinity() { return __int_as_float(0x7f800000); }

/// 2^x, relative error 2^-22; -inf gives 0, subnormal results are 0.
ONEPASS_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

ONEPASS_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

ONEPASS_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <>
struct ElementTraits<Bf16> {
  ONEPASS_DEVICE static Uint32 pack(float low, float high) {
    Uint32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
  }
  ONEPASS_DEVICE static float to_float(Bf16 x) { return __int_as_float(static_cast<int>(x.bits) << 16); }
};

template <>
struct ElementTraits<F16> {
  ONEPASS_DEVICE static Uint32 pack(float low, float high) {
    Uint32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
  }
  ONEPASS_DEVICE static float to_float(F16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
  }
};

}  // namespace onepass::cuda
