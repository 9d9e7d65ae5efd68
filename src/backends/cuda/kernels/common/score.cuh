// Changes of the score tile: scale, softcap, ALiBi, bias (in that order), then the mask.
#pragma once

#include "common/math.cuh"
#include "common/sequence.cuh"
#include "common/tile_range.h"
#include "params.h"
#include "ptx/fragment_maps.h"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// What a thread needs of one of its rows to change scores.
struct ScoreRow {
  KeyRange keys;     // that it sees
  int position;      // i + off
  float slope;       // ALiBi
  const char* bias;  // bias[b, h, i, 0], null: none
};

/// Of row i of a sequence and head, which sees `keys`.
template <bool kScoreTerms>
ONEPASS_DEVICE ScoreRow describe_row(const ForwardParams& p, KeyRange keys, const Sequence& seq,
                                     int batch_idx, int head, int i) {
  ScoreRow row{keys, i + seq.seqlen_k - seq.seqlen_q, 0.0f, nullptr};
  if constexpr (kScoreTerms) {
    if (p.alibi_slopes != nullptr) {
      row.slope = p.alibi_slopes[batch_idx * p.alibi_batch_stride + head * p.alibi_head_stride];
    }
    if (p.bias != nullptr) {
      const Index64 offset =
          batch_idx * p.bias_batch_stride + head * p.bias_head_stride + i * p.bias_row_stride;
      row.bias = static_cast<const char*>(p.bias) + offset * (p.bias_is_f32 ? 4 : 2);
    }
  }
  return row;
}

/// Of the keys that the row sees; `score(i)` is the one of key `key(i)`.
template <int kCount, class Value, class ScoreAt, class KeyAt>
ONEPASS_DEVICE void add_bias(const ScoreRow& row, Index64 key_stride, Value value, ScoreAt score, KeyAt key) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (key(i) >= row.keys.begin && key(i) < row.keys.end) score(i) += value(key(i) * key_stride);
  }
}

/// The derivative of a score after the softcap with respect to the score before it, from the dot product.
ONEPASS_DEVICE float softcap_slope(const ForwardParams& p, float dot) {
  if (p.softcap <= 0.0f) return 1.0f;
  const float t = tanh_by_exp(dot * p.softmax_scale * (1.0f / p.softcap));
  return 1.0f - t * t;
}

/// kCount scores of a row in place: in natural units after all terms; the exponent's factor is log2(e)
/// afterwards. Term by term, so that a branch is one for all of them.
template <class Element, int kCount, class ScoreAt, class KeyAt>
ONEPASS_DEVICE void apply_score_terms(const ForwardParams& p, const ScoreRow& row, ScoreAt score, KeyAt key) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) score(i) *= p.softmax_scale;
  if (p.softcap > 0.0f) {
    const float reciprocal = 1.0f / p.softcap;
#pragma unroll
    for (int i = 0; i < kCount; ++i) score(i) = p.softcap * tanh_by_exp(score(i) * reciprocal);
  }
  if (p.alibi_slopes != nullptr) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) score(i) -= row.slope * fabsf(static_cast<float>(row.position - key(i)));
  }
  if (row.bias != nullptr) {
    if (p.bias_is_f32) {
      add_bias<kCount>(
          row, p.bias_key_stride,
          [&](Index64 offset) { return reinterpret_cast<const float*>(row.bias)[offset]; }, score, key);
    } else {
      add_bias<kCount>(
          row, p.bias_key_stride,
          [&](Index64 offset) {
            return ElementTraits<Element>::to_float(reinterpret_cast<const Element*>(row.bias)[offset]);
          },
          score, key);
    }
  }
}

/// One accumulator row (half `r` of m16 tile s) of the block that starts at first_key.
template <class Element, int kScoreTiles>
ONEPASS_DEVICE void apply_score_terms(const ForwardParams& p, const ScoreRow& row, int first_key,
                                      float (&s)[kScoreTiles][4], int r) {
  const int column = first_key + accumulator_place(static_cast<int>(threadIdx.x) & 31, 2 * r).column;
  apply_score_terms<Element, 2 * kScoreTiles>(
      p, row, [&](int i) -> float& { return s[i / 2][2 * r + i % 2]; },
      [&](int i) { return column + 8 * (i / 2) + i % 2; });
}

/// -inf where the row does not see the key. A selection, never an addition: NaN outside the mask vanishes.
template <int kScoreTiles>
ONEPASS_DEVICE void apply_mask(KeyRange keys, int first_key, float (&s)[kScoreTiles][4], int r) {
  const int column = first_key + accumulator_place(static_cast<int>(threadIdx.x) & 31, 2 * r).column;
  const int begin = static_cast<int>(keys.begin) - column, end = static_cast<int>(keys.end) - column;
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (8 * n + e < begin || 8 * n + e >= end) s[n][2 * r + e] = -infinity();
    }
  }
}

}  // namespace onepass::cuda
