// Arithmetic of the softmax in instructions of ptx/math.cuh.
#pragma once

#include "ptx/math.cuh"

namespace onepass::cuda {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

/// tanh by the exponential: 1 - 2 / (1 + e^2x). The hardware's tanh.approx has 11 bits, too few for a score
/// that a softcap of 50 multiplies; this one is good to about 1e-6. Saturates to +-1.
ONEPASS_DEVICE float tanh_by_exp(float x) {
  return 1.0f - 2.0f * reciprocal_approx(1.0f + exp2_approx(2.0f * kLog2e * x));
}

}  // namespace onepass::cuda
