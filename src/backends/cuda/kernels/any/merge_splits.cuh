// any/merge_splits.cuh - the parts of a row over disjoint key sets become the row
//
// Problem    lse = log sum_s exp(lse_s) (+ exp(sink)); o = sum_s exp(lse_s - lse) o_s; f32 in, 16 bits out
// Work       one warp per query row and head; a lane owns columns lane, lane + 32, ...
// Bound      memory: num_splits * (head_dim_v + 1) * 4 bytes read per row
// Numerics   a part with lse = -inf holds nothing and is never read
// Sources    spec section 3; Milakov and Gimelshein 2018 (arXiv:1805.02867), section 3.1
#pragma once

#include "common/math.cuh"
#include "common/sequence.cuh"
#include "common/split_rows.cuh"
#include "params.h"

namespace onepass::cuda {

template <class Spec>
struct MergeSplits {
  using Element = typename Spec::Element;
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;

  const ForwardParams& p;

  ONEPASS_DEVICE MergeSplits(const ForwardParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int row_blocks = (p.seqlen_q + Spec::kWarps - 1) / Spec::kWarps;
    const int i =
        static_cast<int>(blockIdx.x) % row_blocks * Spec::kWarps + static_cast<int>(threadIdx.x) / 32;
    const int head = static_cast<int>(blockIdx.x) / row_blocks % p.num_heads_q;
    const int batch_idx = static_cast<int>(blockIdx.x) / row_blocks / p.num_heads_q;
    const Sequence seq = sequence_at(p, batch_idx);
    if (i >= seq.seqlen_q) return;

    const auto [index, num_rows] = split_row<Spec::kParts>(p, seq, batch_idx, head, i);

    float larger = p.sinks != nullptr ? p.sinks[head * p.sinks_stride] : -infinity();
    const float sink = larger;
    const int num_splits = p.num_splits.divisor;
    for (int split = 0; split < num_splits; ++split) {
      larger = fmaxf(larger, p.split_lse[split * num_rows + index]);
    }
    const float reference = larger == -infinity() ? 0.0f : larger;
    float sum = exp2_approx((sink - reference) * kLog2e);
    for (int split = 0; split < num_splits; ++split) {
      sum += exp2_approx((p.split_lse[split * num_rows + index] - reference) * kLog2e);
    }
    const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;

    const Index64 out_row =
        batch_idx * p.o.batch_stride + (seq.q_row0 + i) * p.o.row_stride + head * p.o.head_stride;
    for (int d = lane; d < p.head_dim_v; d += 32) {
      float value = 0.0f;
      for (int split = 0; split < num_splits; ++split) {
        const float lse = p.split_lse[split * num_rows + index];
        if (lse == -infinity()) continue;
        value += exp2_approx((lse - reference) * kLog2e) *
                 p.split_o[(split * num_rows + index) * p.head_dim_v + d];
      }
      const Uint32 packed_value = ElementTraits<Element>::pack(value * scale, 0.0f);
      static_cast<unsigned short*>(p.o.data)[out_row + d] = static_cast<unsigned short>(packed_value);
    }
    if (p.lse != nullptr && lane == 0) {
      p.lse[batch_idx * p.lse_batch_stride + head * p.lse_head_stride + (seq.q_row0 + i) * p.lse_row_stride] =
          sum == 0.0f ? -infinity() : reference + log2_approx(sum) * kLn2;
    }
  }
};

}  // namespace onepass::cuda
