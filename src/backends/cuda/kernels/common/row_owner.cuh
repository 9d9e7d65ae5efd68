// Rows of a buffer of queries or keys, counted over all of it, and the sequence that each belongs to.
#pragma once

#include "common/sequence.cuh"
#include "params.h"
#include "ptx/types.cuh"

namespace onepass::cuda {

struct BufferRow {
  Index64 batch_idx, row;  // in the tensor's dimensions; of packed rows, batch_idx is 0
  bool owned;              // by a sequence
};

/// Row `row` of all queries or, kKeys, of all keys, which are dense or packed.
template <bool kKeys>
ONEPASS_DEVICE BufferRow buffer_row(const ForwardParams& p, Index64 row) {
  const IndexParams& cu_seqlens = kKeys ? p.cu_seqlens_k : p.cu_seqlens_q;
  const int seqlen = kKeys ? p.seqlen_k : p.seqlen_q;
  const bool packed = cu_seqlens.data != nullptr;
  const int batch_idx =
      packed ? sequence_before(cu_seqlens, p.batch, static_cast<int>(row)) : static_cast<int>(row / seqlen);
  BufferRow place{packed ? 0 : batch_idx, packed ? row : row % seqlen, false};
  if (batch_idx >= 0 && batch_idx < p.batch) {
    const Sequence seq = sequence_at(p, batch_idx);
    const int row0 = kKeys ? seq.k_row0 : seq.q_row0;
    place.owned = place.row - row0 < (kKeys ? seq.seqlen_k : seq.seqlen_q);
  }
  return place;
}

}  // namespace onepass::cuda
