// round_to_bytes.h - f32 to the 8-bit types of a cache, for the CPU and for kernels: both write the same
// bits. In integers, because conversions of f8 are instructions from sm_89 on only. Read by g++ and by NVRTC
// alike.
//
// Nearest, ties to even; what is past the largest finite value becomes that value, infinity too. NaN becomes
// 0x7f, the NaN without sign of both f8 types, and 0 of an integer.
#pragma once

#include "common/host_device.h"

namespace onepass::cuda {

/// A float type of 8 bits: sign, exponent and mantissa as in IEEE 754.
struct ByteFloat {
  int mantissa_bits, bias;
  unsigned largest;  // finite value, as bits
};
constexpr ByteFloat kE4m3Format{3, 7, 0x7e};   // 448; no infinity
constexpr ByteFloat kE5m2Format{2, 15, 0x7b};  // 57344

ONEPASS_HOST_DEVICE constexpr unsigned char round_to_byte_float(float x, const ByteFloat& format) {
  const unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits >> 24 & 0x80u;
  const unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;
  const unsigned exponent_change = static_cast<unsigned>(127 - format.bias) << 23;
  if (magnitude < exponent_change + (1u << 23)) {
    // Subnormal: the sum with this power of two has its last bit where the type's is, and rounds there.
    const unsigned aligned = static_cast<unsigned>(127 + 23 + 1 - format.bias - format.mantissa_bits) << 23;
    const float sum = __builtin_bit_cast(float, magnitude) + __builtin_bit_cast(float, aligned);
    return static_cast<unsigned char>(sign | (__builtin_bit_cast(unsigned, sum) - aligned));
  }
  const int dropped = 23 - format.mantissa_bits;
  const unsigned rounded = magnitude + (1u << (dropped - 1)) - 1 + (magnitude >> dropped & 1);
  const unsigned value = (rounded - exponent_change) >> dropped;
  return static_cast<unsigned char>(sign | (value < format.largest ? value : format.largest));
}

ONEPASS_HOST_DEVICE constexpr unsigned char round_to_e4m3(float x) {
  return round_to_byte_float(x, kE4m3Format);
}
ONEPASS_HOST_DEVICE constexpr unsigned char round_to_e5m2(float x) {
  return round_to_byte_float(x, kE5m2Format);
}

/// The bits of an int8, -128 to 127.
ONEPASS_HOST_DEVICE constexpr unsigned char round_to_i8(float x) {
  if (x != x) return 0;
  const float kept = x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x;
  constexpr float kAligned = 12582912.0f;  // 1.5 * 2^23: the sum's last bit counts ones
  return static_cast<unsigned char>(__builtin_bit_cast(unsigned, kept + kAligned) & 0xffu);
}

}  // namespace onepass::cuda
