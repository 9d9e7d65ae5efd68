// Four 8-bit elements of a word to f16, exactly. PTX ISA 9.7.9.21 (cvt, e4m3 since sm_89), 9.7.9.7 (prmt),
// 9.7.4.2 (sub.f16x2).
#pragma once

#include "ptx/types.cuh"

namespace onepass::cuda {

/// Bytes of the pair (low, high), numbered from 0 to 7 by the nibbles of `places`, lowest first.
ONEPASS_DEVICE Uint32 choose_bytes(Uint32 low, Uint32 high, Uint32 places) {
  Uint32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(places));
  return d;
}

/// Which bytes of a word become the first pair, and which the second.
enum class BytePairs {
  Neighbours,  // 0 and 1; 2 and 3
  Across,      // 0 and 2; 1 and 3
};

template <class Stored>
struct EightBits;

template <>
struct EightBits<E4m3> {
  template <BytePairs kPairs>
  ONEPASS_DEVICE static void to_f16(Uint32 word, Uint32& first, Uint32& second) {
    if constexpr (kPairs == BytePairs::Across) word = choose_bytes(word, word, 0x3120);
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}"
        : "=r"(first), "=r"(second)
        : "r"(word));
  }
};

/// The upper half of an f16.
template <>
struct EightBits<E5m2> {
  template <BytePairs kPairs>
  ONEPASS_DEVICE static void to_f16(Uint32 word, Uint32& first, Uint32& second) {
    constexpr bool kAcross = kPairs == BytePairs::Across;
    first = choose_bytes(word, 0, kAcross ? 0x2404 : 0x1404);
    second = choose_bytes(word, 0, kAcross ? 0x3414 : 0x3424);
  }
};

/// x + 128 below the bits of 1024 is the f16 1152 + x.
template <>
struct EightBits<I8> {
  template <BytePairs kPairs>
  ONEPASS_DEVICE static void to_f16(Uint32 word, Uint32& first, Uint32& second) {
    constexpr bool kAcross = kPairs == BytePairs::Across;
    const Uint32 shifted = word ^ 0x80808080u;
    first = minus_1152(choose_bytes(shifted, 0x64646464u, kAcross ? 0x4240 : 0x4140));
    second = minus_1152(choose_bytes(shifted, 0x64646464u, kAcross ? 0x4341 : 0x4342));
  }

 private:
  ONEPASS_DEVICE static Uint32 minus_1152(Uint32 pair) {
    Uint32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(pair), "r"(0x64806480u));
    return d;
  }
};

}  // namespace onepass::cuda
