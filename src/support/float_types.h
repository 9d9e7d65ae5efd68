// Conversions between float and the 16- and 8-bit formats, element by element. The SIMD backend has its own
// vector forms; this is the definition they are tested against.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "backends/cuda/kernels/common/round_to_bytes.h"
#include "onepass/tensor_view.h"

namespace onepass {

/// x, or a NaN without sign, whose text is "nan" and not "-nan".
template <class T>
T without_nan_sign(T x) {
  return std::isnan(x) ? std::numeric_limits<T>::quiet_NaN() : x;
}

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest even; NaN stays NaN.
inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 31u;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/// Round to nearest even; values past 65504 (after rounding) become infinity, NaN stays NaN.
inline std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 aligns the ulp to 2^-24 and rounds to even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// OCP e4m3: bias 7, no infinity, 0x7f and 0xff are NaN.
inline float f8e4m3_to_float(std::uint8_t bits) {
  const float sign = (bits & 0x80u) != 0 ? -1.0f : 1.0f;
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

/// OCP e5m2: the upper half of an f16.
inline float f8e5m2_to_float(std::uint8_t bits) {
  return f16_to_float(static_cast<std::uint16_t>(bits << 8));
}

/// Element `idx` of an array of `dtype` (any type but I32).
inline float load_float(const void* data, DType dtype, std::int64_t idx) {
  switch (dtype) {
    case DType::F32: return static_cast<const float*>(data)[idx];
    case DType::F16: return f16_to_float(static_cast<const std::uint16_t*>(data)[idx]);
    case DType::BF16: return bf16_to_float(static_cast<const std::uint16_t*>(data)[idx]);
    case DType::F8E4M3: return f8e4m3_to_float(static_cast<const std::uint8_t*>(data)[idx]);
    case DType::F8E5M2: return f8e5m2_to_float(static_cast<const std::uint8_t*>(data)[idx]);
    case DType::I8: return static_cast<const std::int8_t*>(data)[idx];
    case DType::I32: break;
  }
  return std::numeric_limits<float>::quiet_NaN();
}

/// Stores, rounded, any type but I32; those of 8 bits saturate (round_to_bytes.h).
inline void store_float(void* data, DType dtype, std::int64_t idx, float value) {
  switch (dtype) {
    case DType::F32: static_cast<float*>(data)[idx] = value; break;
    case DType::F16: static_cast<std::uint16_t*>(data)[idx] = float_to_f16(value); break;
    case DType::BF16: static_cast<std::uint16_t*>(data)[idx] = float_to_bf16(value); break;
    case DType::F8E4M3: static_cast<std::uint8_t*>(data)[idx] = cuda::round_to_e4m3(value); break;
    case DType::F8E5M2: static_cast<std::uint8_t*>(data)[idx] = cuda::round_to_e5m2(value); break;
    case DType::I8: static_cast<std::uint8_t*>(data)[idx] = cuda::round_to_i8(value); break;
    case DType::I32: break;
  }
}

}  // namespace onepass
