// any/backward_prepare.cuh - what the backward kernels need to know of each query row
//
// Problem    delta = dot(dout, o) - dlse and lse * log2(e), f32; +inf for rows without keys and for those that
//            round a sequence up to whole tiles, so that their P is 0. Where dout has no stride of 1, or rows
//            that are no multiple of 16 bytes apart, a copy of it that has
// Work       a warp for each row and head; a lane owns columns lane, lane + 32, ...
// Bound      memory: o and dout are read once
#pragma once

#include "common/gradient_row.cuh"
#include "common/sequence.cuh"
#include "params.h"

namespace onepass::cuda {

template <class Spec>
struct BackwardPrepare {
  using Element = typename Spec::Element;
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;

  const BackwardParams& p;

  ONEPASS_DEVICE BackwardPrepare(const BackwardParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE static float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
  }

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const ForwardParams& f = p.forward;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int padded = static_cast<int>(gradient_rows_per_head(false, 1, f.seqlen_q, 0));
    const int row_blocks = padded / Spec::kWarps;
    const int i =
        static_cast<int>(blockIdx.x) % row_blocks * Spec::kWarps + static_cast<int>(threadIdx.x) / 32;
    const int head = static_cast<int>(blockIdx.x) / row_blocks % f.num_heads_q;
    const int batch_idx = static_cast<int>(blockIdx.x) / row_blocks / f.num_heads_q;
    const Sequence seq = sequence_at(f, batch_idx);
    if (i >= (seq.seqlen_q + kGradientRowPad - 1) / kGradientRowPad * kGradientRowPad) return;

    GivenStatistics statistics;
    float dot = 0.0f;
    if (i < seq.seqlen_q) {
      const Index64 row = seq.q_row0 + i;
      const unsigned short* o = static_cast<const unsigned short*>(f.o.data) + batch_idx * f.o.batch_stride +
                                row * f.o.row_stride + head * f.o.head_stride;
      const TensorParams& source = p.dout_source;
      const unsigned short* dout = static_cast<const unsigned short*>(source.data) +
                                   batch_idx * source.batch_stride + row * source.row_stride +
                                   head * source.head_stride;
      unsigned short* copy = nullptr;
      if (p.dout.data != source.data) {
        copy = static_cast<unsigned short*>(p.dout.data) + batch_idx * p.dout.batch_stride +
               row * p.dout.row_stride + head * p.dout.head_stride;
      }
      for (int d = lane; d < f.head_dim_v; d += 32) {
        const unsigned short bits = dout[d * p.dout_source_dim_stride];
        dot += ElementTraits<Element>::to_float(Element{o[d]}) * ElementTraits<Element>::to_float(Element{bits});
        if (copy != nullptr) copy[d] = bits;
      }
      dot = warp_sum(dot);
      statistics = load_given_statistics(p, batch_idx, head, row);
    }
    if (lane != 0) return;
    store_row_statistics(p, first_gradient_row(f, seq, batch_idx, head) + i, statistics, dot);
  }
};

}  // namespace onepass::cuda
