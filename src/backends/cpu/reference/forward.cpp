// cpu/reference/forward.cpp - attention forward as the formula says, in float64
//
// Problem    spec section 2, every feature, one query row at a time: all scores of the row, their maximum,
//            the sum of exponentials, the weighted sum of V. O(seqlen_k) scratch per thread.
// Numerics   inputs as stored (already rounded), everything else in float64, O and LSE rounded
//            once when stored
// Use        the truth for tests and `--check`; never chosen unless asked for
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/cpu/backend.h"
#include "backends/cpu/reference/score_row.h"
#include "backends/cpu/sequence.h"
#include "support/float_types.h"

namespace onepass::cpu {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Room for the longest row: nothing may throw inside a parallel region.
struct RowScratch {
  explicit RowScratch(const AttentionProblem& problem) : row(problem) {
    out.reserve(static_cast<std::size_t>(problem.head_dim_v));
  }

  ScoreRow row;
  std::vector<double> out;  // (head_dim_v)
};

class ReferenceForward {
 public:
  ReferenceForward(const AttentionProblem& problem, const ForwardArguments& args)
      : problem_(problem), args_(args) {}

  void row(const Sequence& s, std::int64_t h, std::int64_t i, RowScratch& scratch) const {
    const std::int64_t hk = h / problem_.group();
    double max_score = fill_score_row(problem_, args_, s, h, i, scratch.row);
    const KeyRange keys = scratch.row.keys;

    const double sink = problem_.has_sinks ? static_cast<double>(per_head_value(args_.sinks, 0, h)) : -kInf;
    max_score = std::max(max_score, sink);
    const double subtrahend = max_score == -kInf ? 0.0 : max_score;  // no visible key: every term is 0

    double sum = std::exp(sink - subtrahend);
    scratch.out.assign(static_cast<std::size_t>(problem_.head_dim_v), 0.0);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const double p = std::exp(scratch.row.scores[static_cast<std::size_t>(j - keys.begin)] - subtrahend);
      sum += p;
      const double v_descale = row_descale(problem_, args_, s, args_.v_descale, j, hk);
      const std::int64_t v_row = row_offset_k(problem_, args_, s, problem_.v, j, hk);
      for (std::int64_t d = 0; d < problem_.head_dim_v; ++d) {
        scratch.out[static_cast<std::size_t>(d)] +=
            p * v_descale * value_at(args_.v, v_row + d * problem_.v.dim);
      }
    }
    store_row(s, h, i, scratch, sum, subtrahend);
  }

 private:
  void store_row(const Sequence& s, std::int64_t h, std::int64_t i, const RowScratch& scratch, double sum,
                 double subtrahend) const {
    const std::int64_t out_row = row_offset_q(s, problem_.out, i, h);
    for (std::int64_t d = 0; d < problem_.head_dim_v; ++d) {
      const double value = sum == 0.0 ? 0.0 : scratch.out[static_cast<std::size_t>(d)] / sum;
      store_float(args_.out.data, args_.out.dtype, out_row + d * problem_.out.dim, static_cast<float>(value));
    }
    if (problem_.has_lse) {
      const std::int64_t offset = lse_offset(problem_, args_.softmax_lse, s, i, h);
      static_cast<float*>(args_.softmax_lse.data)[offset] = static_cast<float>(subtrahend + std::log(sum));
    }
  }

  const AttentionProblem& problem_;
  const ForwardArguments& args_;
};

}  // namespace

void run_reference(const Plan& plan, const ForwardArguments& args, std::span<std::byte> /*workspace*/) {
  const AttentionProblem& problem = *plan.problem;
  const ReferenceForward forward(problem, args);
  std::vector<RowScratch> scratches;
  scratches.reserve(static_cast<std::size_t>(plan.num_threads));
  for (int thread = 0; thread < plan.num_threads; ++thread) scratches.emplace_back(problem);
  fill_unowned_rows(problem, args);
  const std::int64_t num_items = problem.batch * problem.num_heads_q;
#pragma omp parallel num_threads(plan.num_threads)
  {
    RowScratch& scratch = scratches[static_cast<std::size_t>(omp_get_thread_num())];
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < num_items; ++item) {
      const Sequence s = sequence_at(problem, args, item / problem.num_heads_q);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) forward.row(s, item % problem.num_heads_q, i, scratch);
    }
  }
}

}  // namespace onepass::cpu
