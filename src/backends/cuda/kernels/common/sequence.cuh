// Where one sequence's rows are, read from device memory and kept inside the tensors whatever it holds.
#pragma once

#include "common/tile_range.h"
#include "params.h"
#include "ptx/types.cuh"

namespace onepass::cuda {

struct Sequence {
  int q_row0, k_row0;  // first row in packed buffers, 0 otherwise
  int seqlen_q, seqlen_k;
};

ONEPASS_DEVICE int index_at(const IndexParams& v, int i) { return v.data[static_cast<Index64>(i) * v.stride]; }

ONEPASS_DEVICE int clamp_index(int value, int low, int high) { return max(low, min(value, high)); }

/// Of any two: wraps around, and what leads out of the tensors is cut.
ONEPASS_DEVICE int difference(int end, int begin) {
  return static_cast<int>(static_cast<Uint32>(end) - static_cast<Uint32>(begin));
}

/// The sequence whose rows begin last at or before `row` of a packed buffer; -1 when there is none. Offsets never
/// decrease.
ONEPASS_DEVICE int sequence_before(const IndexParams& cu_seqlens, int batch, int row) {
  int low = 0, high = batch;  // offsets[low - 1] <= row < offsets[high], as far as looked at
  while (low < high) {
    const int middle = (low + high) / 2;
    if (index_at(cu_seqlens, middle) <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

/// Lengths beyond the tensors or the plan's bounds are cut and, by a thread that reports, told through error_flag.
ONEPASS_DEVICE Sequence sequence_at(const ForwardParams& p, int batch_idx, bool reports) {
  Sequence s{0, 0, p.seqlen_q, p.seqlen_k};
  int q_begin = 0, k_begin = 0, q_length = p.seqlen_q, k_length = p.seqlen_k;
  int q_room = p.seqlen_q, k_room = p.seqlen_k;
  if (p.cu_seqlens_q.data != nullptr) {
    q_begin = index_at(p.cu_seqlens_q, batch_idx);
    q_length = difference(index_at(p.cu_seqlens_q, batch_idx + 1), q_begin);
    q_room = min(q_room, p.total_q - clamp_index(q_begin, 0, p.total_q));
  }
  if (p.cu_seqlens_k.data != nullptr) {
    k_begin = index_at(p.cu_seqlens_k, batch_idx);
    k_length = difference(index_at(p.cu_seqlens_k, batch_idx + 1), k_begin);
    k_room = min(k_room, p.total_k - clamp_index(k_begin, 0, p.total_k));
  }
  if (p.seqused_q.data != nullptr) q_length = index_at(p.seqused_q, batch_idx);
  if (p.seqused_k.data != nullptr) k_length = index_at(p.seqused_k, batch_idx);
  s.q_row0 = clamp_index(q_begin, 0, p.total_q);
  s.k_row0 = clamp_index(k_begin, 0, p.total_k);
  s.seqlen_q = clamp_index(q_length, 0, q_room);
  s.seqlen_k = clamp_index(k_length, 0, k_room);
  const bool cut = s.seqlen_q != q_length || s.seqlen_k != k_length || s.q_row0 != q_begin || s.k_row0 != k_begin;
  if (cut && reports) *p.error_flag = static_cast<int>(KernelError::LengthPastCapacity);
  return s;
}

/// For all threads of a warp: its first lane reports.
ONEPASS_DEVICE Sequence sequence_at(const ForwardParams& p, int batch_idx) {
  return sequence_at(p, batch_idx, threadIdx.x % 32 == 0);
}

constexpr int kMostCountedRows = (1 << 30) - 1024;  // of queries and keys: sums of two stay in 32 bits

/// The mask of a sequence in 32 bits, where no length passes kMostCountedRows.
ONEPASS_DEVICE BasicKeyBand<int> narrow_key_band(const ForwardParams& p, const Sequence& seq) {
  const KeyBand band =
      key_band(static_cast<MaskKind>(p.mask_kind), p.window_left, p.window_right, seq.seqlen_q, seq.seqlen_k);
  return {static_cast<int>(max_index(band.lower, -kMostCountedRows)),
          static_cast<int>(min_index(max_index(band.upper, -kMostCountedRows), kMostCountedRows))};
}

}  // namespace onepass::cuda
