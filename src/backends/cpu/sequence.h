// Where one sequence's rows are: the only place where the CPU backends turn layouts into addresses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/kernels/common/tile_range.h"
#include "problem/attention_problem.h"
#include "problem/descale.h"

namespace onepass::cpu {

inline std::int64_t index_at(const TensorView& view, std::int64_t i) {
  return static_cast<const std::int32_t*>(view.data)[i * view.strides[0]];
}

/// The rows of one sequence. Offsets are in elements from the tensor's data, without head and dim.
struct Sequence {
  std::int64_t seqlen_q = 0;  // Sq, rows in use
  std::int64_t seqlen_k = 0;  // Sk, rows in use
  std::int64_t q_row0 = 0;    // first row in a packed buffer; 0 when dense
  std::int64_t k_row0 = 0;    // likewise for k; 0 when dense or paged
  std::int64_t batch_idx = 0;

  std::int64_t diagonal() const { return seqlen_k - seqlen_q; }  // off
};

inline Sequence sequence_at(const AttentionProblem& problem, const ForwardArguments& args, std::int64_t b) {
  Sequence s;
  s.batch_idx = b;
  s.seqlen_q = problem.seqlen_q;
  s.seqlen_k = problem.seqlen_k;
  if (problem.q_layout == SequenceLayout::Packed) {
    s.q_row0 = index_at(args.cu_seqlens_q, b);
    s.seqlen_q = index_at(args.cu_seqlens_q, b + 1) - s.q_row0;
  }
  if (problem.k_layout == SequenceLayout::Packed) {
    s.k_row0 = index_at(args.cu_seqlens_k, b);
    s.seqlen_k = index_at(args.cu_seqlens_k, b + 1) - s.k_row0;
  }
  if (problem.has_seqused_q) s.seqlen_q = index_at(args.seqused_q, b);
  if (problem.has_seqused_k) s.seqlen_k = index_at(args.seqused_k, b);
  return s;
}

/// Element offset of query (or output) row i of a sequence, head h.
inline std::int64_t row_offset_q(const Sequence& s, const TensorStrides& strides, std::int64_t i,
                                 std::int64_t h) {
  return s.batch_idx * strides.batch + (s.q_row0 + i) * strides.row + h * strides.head;
}

/// Page of key (or value) row j of a sequence with paged keys.
inline std::int64_t page_of(const AttentionProblem& problem, const ForwardArguments& args, const Sequence& s,
                            std::int64_t j) {
  const auto* table = static_cast<const std::int32_t*>(args.block_table.data);
  return table[s.batch_idx * args.block_table.strides[0] +
               j / problem.page_size * args.block_table.strides[1]];
}

/// Element offset of key (or value) row j of a sequence, key head h, in any layout.
inline std::int64_t row_offset_k(const AttentionProblem& problem, const ForwardArguments& args,
                                 const Sequence& s, const TensorStrides& strides, std::int64_t j,
                                 std::int64_t h) {
  if (problem.k_layout != SequenceLayout::Paged) {
    return s.batch_idx * strides.batch + (s.k_row0 + j) * strides.row + h * strides.head;
  }
  return page_of(problem, args, s, j) * strides.batch + j % problem.page_size * strides.row +
         h * strides.head;
}

/// row_offset_k of the `count` rows from j_begin on, written to offsets; one table look-up per page.
inline void row_offsets_k(const AttentionProblem& problem, const ForwardArguments& args, const Sequence& s,
                          const TensorStrides& strides, std::int64_t j_begin, std::int64_t count,
                          std::int64_t h, std::int64_t* offsets) {
  const bool paged = problem.k_layout == SequenceLayout::Paged;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t j = j_begin + done;
    const std::int64_t left_in_page = paged ? problem.page_size - j % problem.page_size : count;
    const std::int64_t run = min_index(count - done, left_in_page);
    const std::int64_t first = row_offset_k(problem, args, s, strides, j, h);
    for (std::int64_t t = 0; t < run; ++t) offsets[done + t] = first + t * strides.row;
    done += run;
  }
}

inline KeyBand band_of(const AttentionProblem& problem, const Sequence& s) {
  return key_band(mask_kind(problem.causal), problem.window_left, problem.window_right, s.seqlen_q,
                  s.seqlen_k);
}

/// Element offset into softmax_lse of row i, head h.
inline std::int64_t lse_offset(const AttentionProblem& problem, const TensorView& lse, const Sequence& s,
                               std::int64_t i, std::int64_t h) {
  if (problem.q_layout == SequenceLayout::Packed) {
    return h * lse.strides[0] + (s.q_row0 + i) * lse.strides[1];
  }
  return s.batch_idx * lse.strides[0] + h * lse.strides[1] + i * lse.strides[2];
}

/// Element of an f32 tensor that may broadcast over batch and head: [1], [H] or [B, H].
inline float per_head_value(const TensorView& view, std::int64_t b, std::int64_t h) {
  const auto* data = static_cast<const float*>(view.data);
  if (view.rank == 2) return data[b * view.strides[0] + h * view.strides[1]];
  return data[(view.shape[0] == 1 ? 0 : h) * view.strides[0]];
}

/// Element of an f32 tensor of factors of pages, [pages, 1, H] or [pages, 1, 1].
inline float per_page_value(const TensorView& view, std::int64_t page, std::int64_t h) {
  return static_cast<const float*>(
      view.data)[page * view.strides[0] + (view.shape[2] == 1 ? 0 : h) * view.strides[2]];
}

/// What row j of stored K (or V) is multiplied by, of any shape of factors.
inline float row_descale(const AttentionProblem& problem, const ForwardArguments& args, const Sequence& s,
                         const TensorView& descale, std::int64_t j, std::int64_t h) {
  if (!descale.present()) return 1.0f;
  if (!descale_per_page(descale)) return per_head_value(descale, s.batch_idx, h);
  return per_page_value(descale, page_of(problem, args, s, j), h);
}

/// Element offset of bias[b, h, i, 0]; step along keys is bias.strides[3].
inline std::int64_t bias_row_offset(const TensorView& bias, std::int64_t b, std::int64_t h, std::int64_t i) {
  return (bias.shape[0] == 1 ? 0 : b) * bias.strides[0] + (bias.shape[1] == 1 ? 0 : h) * bias.strides[1] +
         i * bias.strides[2];
}

}  // namespace onepass::cpu
