// Where the f32 partial results of splits lie: rows count (batch, head, row) or, packed, (head, packed row). With
// kParts (batch, head, row) always: sequences of few rows may lie in a packed buffer of many.
#pragma once

#include "common/sequence.cuh"
#include "params.h"
#include "ptx/types.cuh"

namespace onepass::cuda {

struct SplitRow {
  Index64 index, num_rows;  // of one split; those of split s are num_rows * s further on
};

template <bool kParts>
ONEPASS_DEVICE SplitRow split_row(const ForwardParams& p, const Sequence& seq, int batch_idx, int head,
                                  int query) {
  const bool packed = !kParts && p.cu_seqlens_q.data != nullptr;
  const Index64 rows_per_head = packed ? p.total_q : p.seqlen_q;
  const Index64 head_index = (packed ? 0 : static_cast<Index64>(batch_idx) * p.num_heads_q) + head;
  return {head_index * rows_per_head + (kParts ? 0 : seq.q_row0) + query,
          rows_per_head * p.num_heads_q * (packed ? 1 : p.batch)};
}

}  // namespace onepass::cuda
