// Statistics of query rows in a backward call's workspace: gradient_rows.h for a call's parameters.
#pragma once

#include "common/gradient_rows.h"
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

}  // namespace onepass::cuda
