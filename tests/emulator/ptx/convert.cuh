// kernels/ptx/convert.cuh on the CPU.
#pragma once

#include "ptx/types.cuh"
#include "support/float_types.h"
#include "tests/emulator/builtins.h"

namespace onepass::cuda {

enum class BytePairs { Neighbours, Across };

/// By the conversions of one element at a time that the product's CPU side has.
template <DType kDtype>
struct EightBitsOf {
  template <BytePairs kPairs>
  ONEPASS_DEVICE static void to_f16(Uint32 word, Uint32& first, Uint32& second) {
    const auto f16 = [word](int byte) -> Uint32 {
      const auto bits = static_cast<std::uint8_t>(word >> 8 * byte);
      return float_to_f16(load_float(&bits, kDtype, 0));
    };
    constexpr bool kAcross = kPairs == BytePairs::Across;
    first = f16(0) | f16(kAcross ? 2 : 1) << 16;
    second = f16(kAcross ? 1 : 2) | f16(3) << 16;
  }
};

template <class Stored>
struct EightBits;
template <>
struct EightBits<E4m3> : EightBitsOf<DType::F8E4M3> {};
template <>
struct EightBits<E5m2> : EightBitsOf<DType::F8E5M2> {};
template <>
struct EightBits<I8> : EightBitsOf<DType::I8> {};

}  // namespace onepass::cuda
