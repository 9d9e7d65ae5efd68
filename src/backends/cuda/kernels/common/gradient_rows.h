// gradient_rows.h - where the f32 statistics of query rows lie during a backward call. Read by g++ and by
// NVRTC alike.
//
// The rows of a sequence and head follow each other and start at a multiple of kGradientRowPad, so that a
// tile of rows is aligned and whole; what is past the sequence's end counts as rows without keys. Dense
// batches: [B, Hq, seqlen_q rounded up]. Packed ones: [Hq, rows], sequence b from cu_seqlens_q[b] / pad + b
// pads on: its room ends before the next one's begins.
#pragma once

#include "common/host_device.h"

namespace onepass::cuda {

constexpr int kGradientRowPad = 128;

/// Rows of a head: of all sequences where they are packed, else of one.
ONEPASS_HOST_DEVICE constexpr long long gradient_rows_per_head(bool packed, long long batch,
                                                               long long seqlen_q, long long total_q) {
  if (packed) return (total_q / kGradientRowPad + batch) * kGradientRowPad;
  return (seqlen_q + kGradientRowPad - 1) / kGradientRowPad * kGradientRowPad;
}

/// The first row of a sequence whose packed rows begin at q_row0 (0 when dense), and head.
ONEPASS_HOST_DEVICE constexpr long long gradient_row0(bool packed, long long rows_per_head,
                                                      long long num_heads, long long batch_idx,
                                                      long long head, long long q_row0) {
  if (packed) return head * rows_per_head + (q_row0 / kGradientRowPad + batch_idx) * kGradientRowPad;
  return (batch_idx * num_heads + head) * rows_per_head;
}

}  // namespace onepass::cuda
