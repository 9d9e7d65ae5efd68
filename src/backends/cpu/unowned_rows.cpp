// Rows that belong to no sequence: they are the caller's memory too, and get the value of a row without keys.
#include <limits>

#include "backends/cpu/backend.h"
#include "backends/cpu/sequence.h"
#include "support/float_types.h"

namespace onepass::cpu {
namespace {

/// Rows [begin, end) counted from the first row of `s`, all heads.
void clear_rows(const AttentionProblem& problem, const ForwardArguments& args, const Sequence& s,
                std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t h = 0; h < problem.num_heads_q; ++h) {
      const std::int64_t row = row_offset_q(s, problem.out, i, h);
      for (std::int64_t d = 0; d < problem.head_dim_v; ++d) {
        store_float(args.out.data, args.out.dtype, row + d * problem.out.dim, 0.0f);
      }
      if (problem.has_lse) {
        static_cast<float*>(args.softmax_lse.data)[lse_offset(problem, args.softmax_lse, s, i, h)] =
            -std::numeric_limits<float>::infinity();
      }
    }
  }
}

}  // namespace

void fill_unowned_rows(const AttentionProblem& problem, const ForwardArguments& args) {
  if (problem.q_layout == SequenceLayout::Dense) {
    if (!problem.has_seqused_q) return;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      const Sequence s = sequence_at(problem, args, b);
      clear_rows(problem, args, s, s.seqlen_q, problem.seqlen_q);
    }
    return;
  }
  const Sequence buffer{};  // row 0 of the packed buffer
  std::int64_t owned_end = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_at(problem, args, b);
    clear_rows(problem, args, buffer, owned_end, s.q_row0);
    owned_end = s.q_row0 + s.seqlen_q;
  }
  clear_rows(problem, args, buffer, owned_end, problem.total_q);
}

}  // namespace onepass::cpu
