// Statistics of query rows in a backward call's workspace: gradient_rows.h for a call's parameters.
#pragma once

#include "common/gradient_rows.h"
#include "common/math.cuh"
#include "common/sequence.cuh"
#include "params.h"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// The place of row 0 of a sequence and head in lse_log2 and delta.
ONEPASS_DEVICE Index64 first_gradient_row(const ForwardParams& p, const Sequence& seq, int batch_idx, int head) {
  const bool packed = p.cu_seqlens_q.data != nullptr;
  const Index64 rows = gradient_rows_per_head(packed, p.batch, p.seqlen_q, p.total_q);
  return gradient_row0(packed, rows, p.num_heads_q, batch_idx, head, seq.q_row0);
}

/// Of a query row and head, as the caller gives them. Rows without keys have an lse of -inf; those that round a
/// sequence up to whole tiles count as such.
struct GivenStatistics {
  float lse = -infinity(), dlse = 0.0f;
};

ONEPASS_DEVICE GivenStatistics load_given_statistics(const BackwardParams& p, int batch_idx, int head, Index64 row) {
  const ForwardParams& f = p.forward;
  GivenStatistics of;
  of.lse = f.lse[batch_idx * f.lse_batch_stride + head * f.lse_head_stride + row * f.lse_row_stride];
  if (p.dlse != nullptr)
    of.dlse = p.dlse[batch_idx * p.dlse_batch_stride + head * p.dlse_head_stride + row * p.dlse_row_stride];
  return of;
}

/// What the products want to know of a row, where dot is dO . O: lse to base 2 and delta = dot - dlse. A row without
/// keys has +inf, so that its P is 0, and 0, whatever its dO is.
ONEPASS_DEVICE void store_row_statistics(const BackwardParams& p, Index64 place, const GivenStatistics& of, float dot) {
  const bool sees_keys = of.lse != -infinity();
  p.lse_log2[place] = sees_keys ? of.lse * kLog2e : infinity();
  p.delta[place] = sees_keys ? dot - of.dlse : 0.0f;
}

}  // namespace onepass::cuda
