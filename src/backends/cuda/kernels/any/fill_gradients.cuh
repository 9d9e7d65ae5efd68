// any/fill_gradients.cuh - rows that belong to no sequence get gradients of 0
//
// Problem    padding of dense batches (seqused), gaps and ends of packed buffers: dq of query rows, dk and dv of
//            key rows; rows of sequences are left alone
// Work       one warp per row of q, then of k; launched only when such rows can exist
#pragma once

#include "common/row_owner.cuh"
#include "params.h"

namespace onepass::cuda {

template <class Spec>
struct FillGradients {
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;

  const BackwardParams& p;

  ONEPASS_DEVICE FillGradients(const BackwardParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE static void clear(const TensorParams& t, const BufferRow& at, int num_heads, int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    unsigned short* row =
        static_cast<unsigned short*>(t.data) + at.batch_idx * t.batch_stride + at.row * t.row_stride;
    for (int head = 0; head < num_heads; ++head) {
      for (int d = lane; d < head_dim; d += 32) row[head * t.head_stride + d] = 0;
    }
  }

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const ForwardParams& f = p.forward;
    const Index64 row = static_cast<Index64>(blockIdx.x) * Spec::kWarps + threadIdx.x / 32;
    if (row < f.total_q) {
      const BufferRow at = buffer_row<false>(f, row);
      if (!at.owned) clear(p.dq, at, f.num_heads_q, f.head_dim);
    } else if (row - f.total_q < f.total_k) {
      const BufferRow at = buffer_row<true>(f, row - f.total_q);
      if (at.owned) return;
      clear(p.dk, at, f.num_heads_k, f.head_dim);
      clear(p.dv, at, f.num_heads_k, f.head_dim_v);
    }
  }
};

}  // namespace onepass::cuda
