// Changes of the score tile: scale, softcap, ALiBi, bias (in that order), then the mask.
#pragma once

#include "common/math.cuh"
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

/// Scores in natural units after all terms; the exponent's factor is log2(e) afterwards.
template <class Element>
ONEPASS_DEVICE float apply_score_terms(const ForwardParams& p, const ScoreRow& row, int key, float dot) {
  float s = dot * p.softmax_scale;
  if (p.softcap > 0.0f) s = p.softcap * tanh_by_exp(s / p.softcap);
  if (p.alibi_slopes != nullptr) s -= row.slope * fabsf(static_cast<float>(row.position - key));
  if (row.bias != nullptr && key >= row.keys.begin && key < row.keys.end) {
    const Index64 offset = key * p.bias_key_stride;
    s += p.bias_is_f32 ? reinterpret_cast<const float*>(row.bias)[offset]
                       : ElementTraits<Element>::to_float(reinterpret_cast<const Element*>(row.bias)[offset]);
  }
  return s;
}

/// One accumulator row (half `r` of m16 tile s) of the block that starts at first_key.
template <class Element, int kScoreTiles>
ONEPASS_DEVICE void apply_score_terms(const ForwardParams& p, const ScoreRow& row, int first_key,
                                      float (&s)[kScoreTiles][4], int r) {
  const int column = first_key + accumulator_place(static_cast<int>(threadIdx.x) & 31, 2 * r).column;
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = s[n][2 * r + e];
      x = apply_score_terms<Element>(p, row, column + 8 * n + e, x);
    }
  }
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
