// Rows that belong to no sequence: they are the caller's memory too, and get the value of a row without keys,
// or a gradient of 0.
#include <limits>

#include "backends/cpu/backend.h"
#include "backends/cpu/sequence.h"
#include "support/float_types.h"

namespace onepass::cpu {
namespace {

/// Calls clear(s, begin, end) for the query rows of no sequence, counted from the first row of `s`.
template <class Clear>
void each_unowned_q(const AttentionProblem& problem, const ForwardArguments& args, Clear clear) {
  if (problem.q_layout == SequenceLayout::Dense) {
    if (!problem.has_seqused_q) return;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      const Sequence s = sequence_at(problem, args, b);
      clear(s, s.seqlen_q, problem.seqlen_q);
    }
    return;
  }
  const Sequence buffer{};  // row 0 of the packed buffer
  std::int64_t owned_end = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_at(problem, args, b);
    clear(buffer, owned_end, s.q_row0);
    owned_end = s.q_row0 + s.seqlen_q;
  }
  clear(buffer, owned_end, problem.total_q);
}

/// The same for key rows, which are dense or packed.
template <class Clear>
void each_unowned_k(const AttentionProblem& problem, const ForwardArguments& args, Clear clear) {
  if (problem.k_layout == SequenceLayout::Dense) {
    if (!problem.has_seqused_k) return;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      const Sequence s = sequence_at(problem, args, b);
      clear(s, s.seqlen_k, problem.seqlen_k);
    }
    return;
  }
  const Sequence buffer{};
  std::int64_t owned_end = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_at(problem, args, b);
    clear(buffer, owned_end, s.k_row0);
    owned_end = s.k_row0 + s.seqlen_k;
  }
  clear(buffer, owned_end, problem.total_k);
}

void clear_row(const TensorView& view, std::int64_t offset, std::int64_t dim_stride) {
  const std::int64_t head_dim = view.shape[static_cast<std::size_t>(view.rank - 1)];
  for (std::int64_t d = 0; d < head_dim; ++d)
    store_float(view.data, view.dtype, offset + d * dim_stride, 0.0f);
}

/// Query rows [begin, end) of `view`, all heads.
void clear_q_rows(const AttentionProblem& problem, const TensorView& view, const TensorStrides& strides,
                  const Sequence& s, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t h = 0; h < problem.num_heads_q; ++h)
      clear_row(view, row_offset_q(s, strides, i, h), strides.dim);
  }
}

}  // namespace

void fill_unowned_rows(const AttentionProblem& problem, const ForwardArguments& args) {
  each_unowned_q(problem, args, [&](const Sequence& s, std::int64_t begin, std::int64_t end) {
    clear_q_rows(problem, args.out, problem.out, s, begin, end);
    if (!problem.has_lse) return;
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t h = 0; h < problem.num_heads_q; ++h) {
        static_cast<float*>(args.softmax_lse.data)[lse_offset(problem, args.softmax_lse, s, i, h)] =
            -std::numeric_limits<float>::infinity();
      }
    }
  });
}

void fill_unowned_rows(const AttentionProblem& problem, const BackwardArguments& args) {
  const GradientProblem& gradient = *problem.gradient;
  each_unowned_q(problem, args.forward, [&](const Sequence& s, std::int64_t begin, std::int64_t end) {
    clear_q_rows(problem, args.dq, gradient.dq, s, begin, end);
  });
  each_unowned_k(problem, args.forward, [&](const Sequence& s, std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      for (std::int64_t h = 0; h < problem.num_heads_k; ++h) {
        clear_row(args.dk, row_offset_k(problem, args.forward, s, gradient.dk, j, h), gradient.dk.dim);
        clear_row(args.dv, row_offset_k(problem, args.forward, s, gradient.dv, j, h), gradient.dv.dim);
      }
    }
  });
}

}  // namespace onepass::cpu
