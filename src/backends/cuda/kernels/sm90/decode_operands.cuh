// Tiles of K and V in shared memory as operand A of mma m16n8k16. One ldmatrix_x4 takes 32 bytes of 16 keys:
// 16 columns of 16-bit elements, an operand as they are; or 32 columns of 8-bit elements, two operands of f16.
//
// ldmatrix moves pairs of bytes, so 8-bit elements come in another order than operands want: of K a lane has
// four columns of a key, of V (transposed) two columns of two keys. Columns may be numbered as one likes: those
// of K as its rows in Q^T are (query_column), those of V as the rows of O^T are (out_column).
#pragma once

#include "common/softmax.cuh"
#include "ptx/convert.cuh"
#include "ptx/fragment_maps.h"
#include "ptx/math.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// Stored is a 16-bit type.
template <class Stored>
struct StoredTile {
  using Operand = Stored;                      // what products multiply
  static constexpr bool kEightBits = false;
  static constexpr int kOperands = 1;          // of a load: k16 steps of K Q^T, m16 tiles of V^T P^T

  ONEPASS_DEVICE static void keys(const Uint32 (&loaded)[4], int /*i*/, Uint32 (&a)[4]) { copy(loaded, a); }
  ONEPASS_DEVICE static void values(const Uint32 (&loaded)[4], int /*i*/, Uint32 (&a)[4]) { copy(loaded, a); }

  /// First of two neighbouring columns of Q that a lane's register of operand B holds, from the step's first.
  ONEPASS_DEVICE static constexpr int query_column(int lane, int reg) {
    return operand_b_place(lane, reg).row;
  }
  /// The column of O that a row of O^T is, from the tile's first.
  ONEPASS_DEVICE static constexpr int out_column(int row) { return row; }

 private:
  ONEPASS_DEVICE static void copy(const Uint32 (&loaded)[4], Uint32 (&a)[4]) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) a[reg] = loaded[reg];
  }
};

template <class Stored>
struct StoredBytesTile {
  using Operand = F16;  // holds every value of the 8-bit types
  static constexpr bool kEightBits = true;
  static constexpr int kOperands = 2;

  /// Keys lane / 4 and 8 more are registers 2 i and 2 i + 1 of the load.
  ONEPASS_DEVICE static void keys(const Uint32 (&loaded)[4], int i, Uint32 (&a)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      EightBits<Stored>::template to_f16<BytePairs::Neighbours>(loaded[2 * i + half], a[half], a[2 + half]);
    }
  }
  /// Columns 2 (lane / 4) and the next, of keys 2 (lane % 4) and the next, and of those 8 later.
  ONEPASS_DEVICE static void values(const Uint32 (&loaded)[4], int i, Uint32 (&a)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      EightBits<Stored>::template to_f16<BytePairs::Across>(loaded[i + 2 * half], a[2 * half], a[2 * half + 1]);
    }
  }
  ONEPASS_DEVICE static constexpr int query_column(int lane, int reg) { return 4 * (lane % 4) + 2 * reg; }
  ONEPASS_DEVICE static constexpr int out_column(int row) { return row % 8 * 2 + row / 8; }
};

/// Makes a row of Q f16, of which this lane of a quad has some pairs. What the row is to be multiplied by then.
template <int kSteps>
ONEPASS_DEVICE float make_f16(F16, Uint32 (&)[kSteps][2]) {
  return 1.0f;
}

/// With the power of two that brings the row's largest element to 2^14: elements down to 2^-31 of it stay
/// exact, others are off by 2^-39 of it at most.
template <int kSteps>
ONEPASS_DEVICE float make_f16(Bf16, Uint32 (&row)[kSteps][2]) {
  const auto low = [](Uint32 pair) { return __int_as_float(static_cast<int>(pair << 16)); };
  const auto high = [](Uint32 pair) { return __int_as_float(static_cast<int>(pair & 0xffff0000u)); };
  float largest = 0.0f;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int reg = 0; reg < 2; ++reg) {
      largest = fmaxf(largest, fmaxf(fabsf(low(row[step][reg])), fabsf(high(row[step][reg]))));
    }
  }
  const int exponent = max((__float_as_int(quad_max(largest)) >> 23) - 14, 1);  // of what undoes it, biased
  const float factor = __int_as_float((254 - exponent) << 23);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int reg = 0; reg < 2; ++reg) {
      Uint32& pair = row[step][reg];
      pair = ElementTraits<F16>::pack(low(pair) * factor, high(pair) * factor);
    }
  }
  return __int_as_float(exponent << 23);
}

template <>
struct StoredTile<E4m3> : StoredBytesTile<E4m3> {};
template <>
struct StoredTile<E5m2> : StoredBytesTile<E5m2> {};
template <>
struct StoredTile<I8> : StoredBytesTile<I8> {};

}  // namespace onepass::cuda
