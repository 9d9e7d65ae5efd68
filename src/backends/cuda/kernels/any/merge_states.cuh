// any/merge_states.cuh - two partial results over disjoint key sets become one
//
// Problem    lse = logaddexp(lse_a, lse_b); o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b; each tensor f32, f16 or
//            bf16 with strides of its own; the result may be one of the sides
// Work       one warp per row and head; a lane owns columns lane, lane + 32, ...
// Bound      memory: two rows read, one written
// Numerics   weights are a / (a + b) of exponentials against the larger lse, never of a rounded lse; a side with
//            lse = -inf holds nothing: it is never read, the other side is copied
// Sources    spec section 3; Milakov and Gimelshein 2018 (arXiv:1805.02867), section 3.1
#pragma once

#include "params.h"
#include "ptx/math.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

template <class Spec>
struct MergeStates {
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;

  const MergeParams& p;

  ONEPASS_DEVICE MergeStates(const MergeParams& params, char* /*shared*/) : p(params) {}

  struct Row {
    Index64 batch_idx, i, head;
  };

  ONEPASS_DEVICE static Index64 lse_offset(const StateParams& s, const Row& row) {
    return row.batch_idx * s.lse_batch_stride + row.head * s.lse_head_stride + row.i * s.lse_row_stride;
  }
  ONEPASS_DEVICE static Index64 out_offset(const StateParams& s, const Row& row, int d) {
    return row.batch_idx * s.batch_stride + row.i * s.row_stride + row.head * s.head_stride + d * s.dim_stride;
  }

  ONEPASS_DEVICE static float load(const StateParams& s, Index64 offset) {
    if (s.type == FloatType::F32) return static_cast<const float*>(s.out)[offset];
    if (s.type == FloatType::F16) return ElementTraits<F16>::to_float(static_cast<const F16*>(s.out)[offset]);
    return ElementTraits<Bf16>::to_float(static_cast<const Bf16*>(s.out)[offset]);
  }

  ONEPASS_DEVICE static void store(const StateParams& s, Index64 offset, float x) {
    if (s.type == FloatType::F32) {
      static_cast<float*>(s.out)[offset] = x;
      return;
    }
    const Uint32 pair = s.type == FloatType::F16 ? ElementTraits<F16>::pack(x, 0.0f) : ElementTraits<Bf16>::pack(x, 0.0f);
    static_cast<unsigned short*>(s.out)[offset] = static_cast<unsigned short>(pair);
  }

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const Index64 index = static_cast<Index64>(blockIdx.x) * Spec::kWarps + threadIdx.x / 32;
    const Index64 rows_and_heads = p.num_rows * p.num_heads;
    if (index >= p.batch * rows_and_heads) return;
    const Row row{index / rows_and_heads, index % rows_and_heads / p.num_heads, index % p.num_heads};

    const float lse_a = p.a.lse[lse_offset(p.a, row)], lse_b = p.b.lse[lse_offset(p.b, row)];
    __syncwarp();  // the result's lse may be one of these: everybody reads before lane 0 writes
    const float larger = fmaxf(lse_a, lse_b), smaller = fminf(lse_a, lse_b);
    const float share_a = expf(lse_a - larger), share_b = expf(lse_b - larger);
    const float factor = 1.0f / (share_a + share_b);

    for (int d = lane; d < p.head_dim_v; d += 32) {
      float value = 0.0f;
      if (lse_b == -infinity()) {
        if (lse_a != -infinity()) value = load(p.a, out_offset(p.a, row, d));
      } else if (lse_a == -infinity()) {
        value = load(p.b, out_offset(p.b, row, d));
      } else {
        value = share_a * factor * load(p.a, out_offset(p.a, row, d)) + share_b * factor * load(p.b, out_offset(p.b, row, d));
      }
      store(p.out, out_offset(p.out, row, d), value);
    }
    if (p.out.lse != nullptr && lane == 0) {
      const bool has_nan = lse_a != lse_a || lse_b != lse_b;
      p.out.lse[lse_offset(p.out, row)] = has_nan                   ? lse_a + lse_b
                                          : smaller == -infinity() ? larger
                                                                   : larger + log1pf(expf(smaller - larger));
    }
  }
};

}  // namespace onepass::cuda
