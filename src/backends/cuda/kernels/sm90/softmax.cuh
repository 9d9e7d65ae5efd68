// One block of scores of a warpgroup: the mask, the row's reference and sum, and exponentials in place of the
// scores.
//
// Accumulators of wgmma m64nNk16: a thread owns two rows, eight apart; of each, columns 8 j + 2 (lane % 4) +
// {0, 1}. Exponents are taken against a reference: a maximum of the row over earlier blocks. Sum and O keep
// one factor as long as it stays, and the end divides by a sum with the same reference, so nothing is lost.
//   Masked blocks, and the first, and all whose scores were changed (update): their maxima are found, and
//   become the references of rows where they are more than 2^kSlack above them.
//   Blocks that every row sees whole (update_whole): no maxima. Terms are taken against the references there
//   are, and their sum tells when one was too low. The scores are gone then, so they are computed once more
//   (redo_block in forward.cuh), and the row takes the block's maximum. A term over 1 is as exact as one
//   under it, as long as the type of P holds it; TermLimit says how large a sum may be.
// A row's bits depend on that row alone. Numerics otherwise as in common/softmax.cuh. Sources: Milakov and
// Gimelshein 2018 (arXiv:1805.02867); Dao 2023 (arXiv:2307.08691), section 3.1. A threshold for moving the
// maximum is FlashAttention-4's idea; leaving the maxima out is ours.
#pragma once

#include "common/softmax.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// Of the sum of a thread's terms of a row in one block.
template <class Element>
struct TermLimit;
template <>
struct TermLimit<F16> {
  static constexpr float kSum = 32768.0f;  // each term is finite as f16
};
template <>
struct TermLimit<Bf16> {
  static constexpr float kSum = 16777216.0f;  // 2^24: O stays finite for values of V up to 2^80
};

template <class Element, int kTileN, int kAccumulators>
struct BlockSoftmax {
  static constexpr float kSlack = 8.0f;        // of a reference, in powers of two
  static constexpr int kColumns = kTileN / 4;  // of a row in this thread
  static_assert(kColumns <= 32, "a mask has a bit for each");
  static_assert(kColumns * 256.0f < TermLimit<Element>::kSum, "a block whose maxima are known is within it");
  float reference[2], sum[2];  // of the thread's rows; sum is this thread's share
  float correction[2];         // of O, by the last update that moved a reference
  float block_sum[2];          // of the block's terms in this thread
  bool careful;  // some row of the warp has no reference yet, or one too far from 0 for a rounded subtrahend

  ONEPASS_DEVICE static float& score(float (&s)[kTileN / 2], int r, int i) {
    return s[4 * (i >> 1) + 2 * r + (i & 1)];
  }

  ONEPASS_DEVICE static int column(int i) { return 8 * (i >> 1) + (i & 1); }

  /// How many of the thread's columns, 8 j + {0, 1}, come before `column`.
  ONEPASS_DEVICE static int columns_before(int column) {
    return max(0, 2 * (column >> 3) + min(column & 7, 2));
  }
  ONEPASS_DEVICE static Uint32 low_bits(int count) { return count >= 32 ? 0xffffffffu : (1u << count) - 1; }

  /// Before a row's first block, which takes an update.
  ONEPASS_DEVICE void start() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = -infinity();
      sum[r] = 0.0f;
    }
    careful = true;
  }

  /// -inf for the scores of row r outside columns [begin, end), counted from the thread's first one. A
  /// selection: NaN outside vanishes.
  ONEPASS_DEVICE static void mask(float (&s)[kTileN / 2], int r, int begin, int end) {
    const Uint32 seen = low_bits(columns_before(end)) & ~low_bits(columns_before(begin));
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if ((seen >> i & 1) == 0) score(s, r, i) = -infinity();
    }
  }

  /// With maxima. Returns, alike for the warp, whether O must be corrected.
  ONEPASS_DEVICE bool update(float (&s)[kTileN / 2], float scale_log2) {
    float larger[2];
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      larger[r] = quad_max(block_max(s, r));
      const bool moves = is_over(larger[r], r, scale_log2);
      if (!moves) larger[r] = reference[r];
      moved |= moves;
    }
    moved = __any_sync(0xffffffffu, moved);
    if (moved) move(larger, scale_log2);
    take_terms(s, scale_log2);
    add_block();
    return moved;
  }

  /// Without maxima.
  ONEPASS_DEVICE void update_whole(float (&s)[kTileN / 2], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) block_sum[r] = exponentials(s, r, scale_log2, reference[r] * scale_log2);
  }

  /// Whether update_whole was wrong for a row of the warp: its reference was too low for the block, or needs
  /// care.
  ONEPASS_DEVICE bool failed() const {
    constexpr float kLimit = TermLimit<Element>::kSum;
    return __any_sync(0xffffffffu, careful || block_sum[0] > kLimit || block_sum[1] > kLimit);
  }

  /// Of those rows; their references move to the block's maxima. larger: of the thread's scores of the block;
  /// used up.
  ONEPASS_DEVICE void find_failed(float (&larger)[2], bool (&failed)[2], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      larger[r] = quad_max(larger[r]);
      failed[r] = quad_max(block_sum[r]) > TermLimit<Element>::kSum || needs_care(reference[r], scale_log2);
      if (!failed[r] || !is_over(larger[r], r, scale_log2)) larger[r] = reference[r];
    }
    move(larger, scale_log2);
  }

  /// What a score's term is: 2^(scale_log2 * (score - difference) - subtrahend).
  struct Exponent {
    float difference, subtrahend;
  };
  ONEPASS_DEVICE Exponent exponent(int r, float scale_log2) const {
    const float finite = finite_or_zero(reference[r]), scaled = finite * scale_log2;
    return is_far(scaled) ? Exponent{finite, 0.0f} : Exponent{0.0f, scaled};
  }

  ONEPASS_DEVICE void add_block() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += block_sum[r];
  }

 private:
  /// Too far from 0 for a rounded product: the difference is taken first then, and nothing is left to
  /// subtract.
  ONEPASS_DEVICE static bool is_far(float scaled) { return !(fabsf(scaled) < kWide); }

  ONEPASS_DEVICE static bool needs_care(float reference, float scale_log2) {
    return is_far(reference * scale_log2);  // -inf, too
  }

  /// From -inf to -inf, too.
  ONEPASS_DEVICE bool is_over(float larger, int r, float scale_log2) const {
    return !((larger - reference[r]) * scale_log2 <= kSlack);
  }

  /// A row without keys yet has no maximum; 0 makes all its terms 0.
  ONEPASS_DEVICE static float finite_or_zero(float x) { return x == -infinity() ? 0.0f : x; }

  ONEPASS_DEVICE void move(const float (&larger)[2], float scale_log2) {
    bool care = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float finite = finite_or_zero(larger[r]);
      correction[r] = exp2_approx((reference[r] - finite) * scale_log2);
      sum[r] *= correction[r];
      reference[r] = larger[r];
      care |= needs_care(larger[r], scale_log2);
    }
    careful = __any_sync(0xffffffffu, care);
  }

  /// Terms in place of the scores, and their sums.
  ONEPASS_DEVICE void take_terms(float (&s)[kTileN / 2], float scale_log2) {
    float subtrahend[2];
    if (careful) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Exponent e = exponent(r, scale_log2);
        subtrahend[r] = e.subtrahend;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) score(s, r, i) -= e.difference;
      }
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) subtrahend[r] = reference[r] * scale_log2;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) block_sum[r] = exponentials(s, r, scale_log2, subtrahend[r]);
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
    return partial[0];
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
