// Running softmax statistics of the rows that a thread owns: two of each tile of accumulators.
//
// The exponent is x = scale_log2 * (s - m). Where |scale_log2 * m| is ordinary this is one fused multiply-add
// with the rounded product; its rounding error is the same for every key of the row and cancels. Past kWide it
// would not stay small (a logit of 1e11 has an ulp of 8192), so there the difference is taken first.
// Sources: Milakov and Gimelshein 2018 (arXiv:1805.02867); Dao 2023 (arXiv:2307.08691), section 3.1.
#pragma once

#include "common/math.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

constexpr float kWide = 8192.0f;

ONEPASS_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

ONEPASS_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// A row without keys yet has no maximum; 0 makes all its terms 0.
ONEPASS_DEVICE float finite_reference(float max) { return max == -infinity() ? 0.0f : max; }

/// What sum and O are multiplied by when the maximum of their row rises to `larger`.
ONEPASS_DEVICE float correction_to(float larger, float max, float scale_log2) {
  return exp2_approx((max - finite_reference(larger)) * scale_log2);
}

/// Where rows of S and O lie in the accumulators of an mma (fragment_maps.h). Along M: two rows of an m16 tile are
/// a thread's, each shared by the four lanes of a quad.
struct RowsAlongM {
  /// Of the two that a thread has of row r, 0 or 1.
  ONEPASS_DEVICE static constexpr int element(int r, int i) { return 2 * r + i; }
  ONEPASS_DEVICE static constexpr int row(int element) { return element / 2; }
  ONEPASS_DEVICE static float max(float x) { return quad_max(x); }
};

/// Along N, where S and O are transposed: two rows of an n8 tile, each shared by the eight lanes of a lane % 4.
struct RowsAlongN {
  ONEPASS_DEVICE static constexpr int element(int r, int i) { return r + 2 * i; }
  ONEPASS_DEVICE static constexpr int row(int element) { return element % 2; }
  ONEPASS_DEVICE static float max(float x) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    }
    return x;
  }
  ONEPASS_DEVICE static float sum(float x) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
  }
};

template <int kRowTiles, class Rows = RowsAlongM>
struct RunningSoftmax {
  float max[kRowTiles][2];  // of the scores as the products gave them, over the whole row; starts at -inf
  float sum[kRowTiles][2];  // this thread's share of the sum of exponentials

  ONEPASS_DEVICE void reset() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        max[t][r] = -infinity();
        sum[t][r] = 0.0f;
      }
    }
  }

  /// Turns scores into exponentials and rescales what was accumulated before. join(larger) lets warps that share
  /// rows agree on the maxima of this block.
  template <int kScoreTiles, int kOutTiles, class Join>
  ONEPASS_DEVICE void update(float (&s)[kRowTiles][kScoreTiles][4], float (&o)[kRowTiles][kOutTiles][4],
                             float scale_log2, Join join) {
    float block_max[kRowTiles][2];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float larger = fmaxf(s[t][0][Rows::element(r, 0)], s[t][0][Rows::element(r, 1)]);
#pragma unroll
        for (int n = 1; n < kScoreTiles; ++n) {
          larger = fmaxf(larger, fmaxf(s[t][n][Rows::element(r, 0)], s[t][n][Rows::element(r, 1)]));
        }
        block_max[t][r] = Rows::max(larger);
      }
    }
    join(block_max);
    bool wide = false;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float larger = fmaxf(max[t][r], block_max[t][r]);
        const float correction = correction_to(larger, max[t][r], scale_log2);
        max[t][r] = larger;
        sum[t][r] *= correction;
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) {
          o[t][n][Rows::element(r, 0)] *= correction;
          o[t][n][Rows::element(r, 1)] *= correction;
        }
        wide |= !(fabsf(finite_reference(larger) * scale_log2) < kWide);
      }
    }
    wide = __any_sync(0xffffffffu, wide);
    if (wide) subtract_maximum(s);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float subtrahend = wide ? 0.0f : finite_reference(max[t][r]) * scale_log2;
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[t][n][Rows::element(r, e)];
            x = exp2_approx(fmaf(x, scale_log2, -subtrahend));
            sum[t][r] += x;
          }
        }
      }
    }
  }

 private:
  template <int kScoreTiles>
  ONEPASS_DEVICE void subtract_maximum(float (&s)[kRowTiles][kScoreTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[t][n][e] -= finite_reference(max[t][Rows::row(e)]);
      }
    }
  }
};

struct RowResult {
  float factor;  // what the accumulated row is multiplied by
  float lse;     // natural logarithm
};

/// The end of a row: total is the whole row's sum. `sink` is -inf when there is none.
ONEPASS_DEVICE RowResult finish_row(float max, float total, float scale_log2, float sink) {
  RowResult result;
  result.factor = total == 0.0f ? 0.0f : reciprocal_approx(total);  // one term at least is about 1, so total is normal
  // max * scale first in natural units: in base 2 the largest finite scores would overflow.
  result.lse = total == 0.0f ? -infinity() : fmaf(max, scale_log2 * kLn2, log2_approx(total) * kLn2);
  if (sink != -infinity()) {
    const float larger = fmaxf(result.lse, sink);
    const float joint =
        larger + kLn2 * log2_approx(exp2_approx((result.lse - larger) * kLog2e) + exp2_approx((sink - larger) * kLog2e));
    result.factor *= exp2_approx((result.lse - joint) * kLog2e);
    result.lse = joint;
  }
  return result;
}

}  // namespace onepass::cuda
