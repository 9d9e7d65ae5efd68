// fast_divisor.h - division by a number that is known before the launch: a multiplication and a shift instead
// of some thirty dependent instructions. Read by g++ and by NVRTC alike.
//
// Source: Granlund and Montgomery 1994, "Division by invariant integers using multiplication", section 4.
#pragma once

#include "common/host_device.h"

namespace onepass::cuda {

/// divisor: 1 to 2^31 - 1, or 0 where nothing will be divided.
struct FastDivisor {
  int divisor;
  unsigned multiplier;  // ceil(2^32 * 2^shift / divisor) - 2^32
  int shift;            // ceil(log2(divisor))

  /// n / divisor, for n from 0 to 2^31 - 1.
  ONEPASS_HOST_DEVICE constexpr int quotient(int n) const {
    const unsigned high = static_cast<unsigned>(static_cast<unsigned long long>(n) * multiplier >> 32);
    return static_cast<int>((high + static_cast<unsigned>(n)) >> shift);
  }
  /// The n that gave `quotient`, less quotient * divisor.
  ONEPASS_HOST_DEVICE constexpr int remainder(int n, int quotient) const { return n - quotient * divisor; }
};

/// Of 0, which nothing can be divided by: all zeros.
ONEPASS_HOST_DEVICE constexpr FastDivisor fast_divisor(int divisor) {
  if (divisor == 0) return {};
  FastDivisor out{divisor, 0, 0};
  while ((1LL << out.shift) < divisor) ++out.shift;
  const unsigned long long excess = (1ULL << out.shift) - static_cast<unsigned long long>(divisor);
  out.multiplier = static_cast<unsigned>((excess << 32) / static_cast<unsigned long long>(divisor) + 1);
  return out;
}

}  // namespace onepass::cuda
