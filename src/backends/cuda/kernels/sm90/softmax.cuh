// One block of scores of a warpgroup: the mask, the running maximum and sum, and exponentials in place of the
// scores.
//
// Accumulators of wgmma m64nNk16: a thread owns two rows, eight apart; of each, columns 8 j + 2 (lane % 4) +
// {0, 1}. The maximum of a row stays until a new one is more than 2^8 above it as an exponential: sum and O
// then keep their factor, and the end divides by a sum with the same reference, so nothing is lost. A warp
// skips the correction when no row of it moves; each row's bits depend on that row alone. Numerics otherwise
// as in common/softmax.cuh.
// Sources: Milakov and Gimelshein 2018 (arXiv:1805.02867); Dao 2023 (arXiv:2307.08691), section 3.1.
#pragma once

#include "common/softmax.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// Which keys of the block a row sees: columns [begin, end), counted from the thread's first.
struct ColumnRange {
  int begin, end;
};

template <int kTileN, int kAccumulators>
struct BlockSoftmax {
  static constexpr float kSlack = 8.0f;        // of the maximum, in powers of two
  static constexpr int kColumns = kTileN / 4;  // of a row in this thread
  float max[2], sum[2];                        // of the thread's rows; sum is this thread's share
  float subtrahend[2];                         // of the exponent's argument: the maximum, scaled
  float correction[2];                         // of O, by the last update that moved a maximum
  bool wide;  // some maximum of the warp is too far from 0 for a rounded subtrahend

  ONEPASS_DEVICE static float& score(float (&s)[kTileN / 2], int r, int i) {
    return s[4 * (i >> 1) + 2 * r + (i & 1)];
  }
  ONEPASS_DEVICE static int column(int i) { return 8 * (i >> 1) + (i & 1); }

  /// kFirst: of the tile, so there is nothing to correct. Returns, alike for the warp, whether O must be
  /// corrected.
  template <bool kMaskBegin, bool kMaskEnd, bool kFirst>
  ONEPASS_DEVICE bool update(float (&s)[kTileN / 2], const ColumnRange (&visible)[2], float scale_log2) {
    float larger[2];
    bool moved = kFirst;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kMaskBegin || kMaskEnd) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if ((kMaskBegin && column(i) < visible[r].begin) || (kMaskEnd && column(i) >= visible[r].end)) {
            score(s, r, i) = -infinity();
          }
        }
      }
      larger[r] = block_max(s, r);
      if constexpr (!kFirst) {
        larger[r] = fmaxf(larger[r], max[r]);
        const bool moves = !((larger[r] - max[r]) * scale_log2 <= kSlack);  // also from -inf to -inf
        if (!moves) larger[r] = max[r];
        moved |= moves;
      }
    }
    if constexpr (!kFirst) moved = __any_sync(0xffffffffu, moved);
    if (moved) move_maxima<kFirst>(larger, scale_log2);
    if (wide) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float reference = finite_or_zero(max[r]);
        const float difference = is_wide(reference * scale_log2) ? reference : 0.0f;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) score(s, r, i) -= difference;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float block_sum = exponentials(s, r, scale_log2, subtrahend[r]);
      sum[r] = kFirst ? block_sum : sum[r] + block_sum;
    }
    return moved;
  }

 private:
  /// Too far from 0 for a rounded product: the difference is taken first then, and nothing is left to subtract.
  ONEPASS_DEVICE static bool is_wide(float scaled) { return !(fabsf(scaled) < kWide); }

  /// A row without keys yet has no maximum; 0 makes all its terms 0.
  ONEPASS_DEVICE static float finite_or_zero(float x) { return x == -infinity() ? 0.0f : x; }

  template <bool kFirst>
  ONEPASS_DEVICE void move_maxima(const float (&larger)[2], float scale_log2) {
    bool far = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = finite_or_zero(larger[r]);
      if constexpr (!kFirst) {
        correction[r] = exp2_approx((max[r] - reference) * scale_log2);
        sum[r] *= correction[r];
      }
      max[r] = larger[r];
      const float scaled = reference * scale_log2;
      subtrahend[r] = is_wide(scaled) ? 0.0f : scaled;
      far |= is_wide(scaled);
    }
    wide = __any_sync(0xffffffffu, far);
  }

  ONEPASS_DEVICE static float block_max(float (&s)[kTileN / 2], int r) {
    float partial[kAccumulators];
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) partial[i] = score(s, r, i);
#pragma unroll
    for (int i = kAccumulators; i < kColumns; ++i) {
      partial[i % kAccumulators] = fmaxf(partial[i % kAccumulators], score(s, r, i));
    }
#pragma unroll
    for (int i = 1; i < kAccumulators; ++i) partial[0] = fmaxf(partial[0], partial[i]);
    return quad_max(partial[0]);
  }

  ONEPASS_DEVICE static float exponentials(float (&s)[kTileN / 2], int r, float scale_log2,
                                           float subtrahend) {
    float partial[kAccumulators];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      float& x = score(s, r, i);
      x = exp2_approx(fmaf(x, scale_log2, -subtrahend));
      if (i < kAccumulators) {
        partial[i] = x;
      } else {
        partial[i % kAccumulators] += x;
      }
    }
#pragma unroll
    for (int i = 1; i < kAccumulators; ++i) partial[0] += partial[i];
    return partial[0];
  }
};

}  // namespace onepass::cuda
