// any/fill_rows.cuh - query rows that belong to no sequence get o = 0 and lse = -inf
//
// Problem    padding of dense batches (seqused_q), gaps and ends of packed buffers; rows of sequences are left alone
// Work       one warp per row of the buffer; launched only when such rows can exist
#pragma once

#include "common/row_owner.cuh"
#include "params.h"
#include "ptx/math.cuh"

namespace onepass::cuda {

template <class Spec>
struct FillRows {
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;

  const ForwardParams& p;

  ONEPASS_DEVICE FillRows(const ForwardParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const Index64 row = static_cast<Index64>(blockIdx.x) * Spec::kWarps + threadIdx.x / 32;
    if (row >= p.total_q) return;
    const BufferRow at = buffer_row<false>(p, row);
    if (at.owned) return;
    const Index64 b = at.batch_idx, i = at.row;
    for (int head = 0; head < p.num_heads_q; ++head) {
      unsigned short* out =
          static_cast<unsigned short*>(p.o.data) + b * p.o.batch_stride + i * p.o.row_stride + head * p.o.head_stride;
      for (int d = lane; d < p.head_dim_v; d += 32) out[d] = 0;
      if (p.lse != nullptr && lane == 0) {
        p.lse[b * p.lse_batch_stride + head * p.lse_head_stride + i * p.lse_row_stride] = -infinity();
      }
    }
  }
};

}  // namespace onepass::cuda
