// cpu/reference/backward.cpp - attention backward as the formula says, in float64
//
// Problem    spec section 4, every feature, one query row at a time: its scores again, P from the saved LSE,
//            dP and dS; dQ of the row, its share of dK and dV. O(seqlen_k) scratch per row, and dK, dV of one
//            key head per thread
// Numerics   inputs as stored (already rounded), O and LSE among them; everything else in float64, gradients
//            rounded once when stored. Sums run in a fixed order whatever the number of threads
// Use        the truth for tests and `--check`; never chosen unless asked for
#include <omp.h>

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

/// Room for the longest sequence: nothing may throw inside a parallel region.
struct Scratch {
  Scratch(const AttentionProblem& problem, std::int64_t bias_row)
      : row(problem),
        dout(static_cast<std::size_t>(problem.head_dim_v)),
        dq(static_cast<std::size_t>(problem.head_dim)),
        dk(static_cast<std::size_t>(problem.seqlen_k * problem.head_dim)),
        dv(static_cast<std::size_t>(problem.seqlen_k * problem.head_dim_v)),
        dbias(static_cast<std::size_t>(bias_row)) {
    p.reserve(static_cast<std::size_t>(problem.seqlen_k));
    ds.reserve(static_cast<std::size_t>(problem.seqlen_k));
  }

  ScoreRow row;
  std::vector<double> dout;   // (head_dim_v) of one row
  std::vector<double> p;      // of the row's visible keys, as row.scores
  std::vector<double> ds;     // likewise: the gradient of the final score
  std::vector<double> dq;     // (head_dim) of one row
  std::vector<double> dk;     // (seqlen_k, head_dim) of one key head
  std::vector<double> dv;     // (seqlen_k, head_dim_v)
  std::vector<double> dbias;  // one row of it, all its keys
};

class ReferenceBackward {
 public:
  ReferenceBackward(const AttentionProblem& problem, const BackwardArguments& args)
      : p_(problem), g_(*problem.gradient), f_(args.forward), a_(args) {}

  /// dQ of all rows of the query heads that read key head hk, and its dK and dV.
  void key_head(std::int64_t b, std::int64_t hk, Scratch& x) const {
    const Sequence s = sequence_at(p_, f_, b);
    std::fill(x.dk.begin(), x.dk.end(), 0.0);
    std::fill(x.dv.begin(), x.dv.end(), 0.0);
    for (std::int64_t h = hk * p_.group(); h < (hk + 1) * p_.group(); ++h) {
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        fill_gradient_row(s, h, i, x);
        add_row(s, h, i, x);
      }
    }
    for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
      store(a_.dk, row_offset_k(p_, f_, s, g_.dk, j, hk), g_.dk.dim, &x.dk[index(j * p_.head_dim)],
            p_.head_dim);
      store(a_.dv, row_offset_k(p_, f_, s, g_.dv, j, hk), g_.dv.dim, &x.dv[index(j * p_.head_dim_v)],
            p_.head_dim_v);
    }
  }

  /// Row i of dbias[b, h], which several sequences or heads may share.
  void bias_row(std::int64_t bias_b, std::int64_t bias_h, std::int64_t i, Scratch& x) const {
    const TensorView& dbias = a_.dbias;
    std::fill(x.dbias.begin(), x.dbias.end(), 0.0);
    const bool one_b = dbias.shape[0] == 1, one_h = dbias.shape[1] == 1;
    for (std::int64_t b = one_b ? 0 : bias_b; b < (one_b ? p_.batch : bias_b + 1); ++b) {
      const Sequence s = sequence_at(p_, f_, b);
      if (i >= s.seqlen_q) continue;
      for (std::int64_t h = one_h ? 0 : bias_h; h < (one_h ? p_.num_heads_q : bias_h + 1); ++h) {
        fill_gradient_row(s, h, i, x);
        for (std::size_t n = 0; n < x.ds.size(); ++n) x.dbias[index(x.row.keys.begin) + n] += x.ds[n];
      }
    }
    store(dbias, bias_b * dbias.strides[0] + bias_h * dbias.strides[1] + i * dbias.strides[2],
          dbias.strides[3], x.dbias.data(), dbias.shape[3]);
  }

  void sink(std::int64_t h) const {
    const auto sink = static_cast<double>(per_head_value(f_.sinks, 0, h));
    double sum = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const Sequence s = sequence_at(p_, f_, b);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        const double lse = lse_at(s, h, i);
        if (lse != -kInf) sum -= std::exp(sink - lse) * delta(s, h, i);
      }
    }
    static_cast<float*>(a_.dsinks.data)[h * a_.dsinks.strides[0]] = static_cast<float>(sum);
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  static void store(const TensorView& to, std::int64_t offset, std::int64_t stride, const double* values,
                    std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) {
      store_float(to.data, to.dtype, offset + n * stride, static_cast<float>(values[n]));
    }
  }

  double lse_at(const Sequence& s, std::int64_t h, std::int64_t i) const {
    return value_at(f_.softmax_lse, lse_offset(p_, f_.softmax_lse, s, i, h));
  }

  double delta(const Sequence& s, std::int64_t h, std::int64_t i) const {
    const std::int64_t out_row = row_offset_q(s, p_.out, i, h), dout_row = row_offset_q(s, g_.dout, i, h);
    double sum = g_.has_dlse ? -value_at(a_.dlse, lse_offset(p_, a_.dlse, s, i, h)) : 0.0;
    for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
      sum += value_at(a_.dout, dout_row + d * g_.dout.dim) * value_at(f_.out, out_row + d * p_.out.dim);
    }
    return sum;
  }

  /// Scores, P and dS of a row. They are empty where lse is -inf: such a row has no key of any weight.
  void fill_gradient_row(const Sequence& s, std::int64_t h, std::int64_t i, Scratch& x) const {
    fill_score_row(p_, f_, s, h, i, x.row);
    const std::int64_t hk = h / p_.group(), dout_row = row_offset_q(s, g_.dout, i, h);
    for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
      x.dout[index(d)] = value_at(a_.dout, dout_row + d * g_.dout.dim);
    }
    const double lse = lse_at(s, h, i);
    const double row_delta = delta(s, h, i);
    const std::size_t count = lse == -kInf ? 0 : x.row.scores.size();
    x.p.resize(count);
    x.ds.resize(count);
    for (std::size_t n = 0; n < count; ++n) {
      x.p[n] = std::exp(x.row.scores[n] - lse);
      const std::int64_t v_row =
          row_offset_k(p_, f_, s, p_.v, x.row.keys.begin + static_cast<std::int64_t>(n), hk);
      double dp = 0;
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
        dp += x.dout[index(d)] * value_at(f_.v, v_row + d * p_.v.dim);
      }
      x.ds[n] = x.p[n] * (dp - row_delta);
    }
  }

  /// What the row gives: its dQ, stored, and its part of dK and dV.
  void add_row(const Sequence& s, std::int64_t h, std::int64_t i, Scratch& x) const {
    std::fill(x.dq.begin(), x.dq.end(), 0.0);
    for (std::size_t n = 0; n < x.p.size(); ++n) {
      const std::int64_t j = x.row.keys.begin + static_cast<std::int64_t>(n);
      const std::int64_t k_row = row_offset_k(p_, f_, s, p_.k, j, h / p_.group());
      const double scaled = p_.softmax_scale * x.ds[n] * x.row.softcap_slopes[n];
      for (std::int64_t d = 0; d < p_.head_dim; ++d) {
        x.dq[index(d)] += scaled * value_at(f_.k, k_row + d * p_.k.dim);
        x.dk[index(j * p_.head_dim + d)] += scaled * x.row.query[index(d)];
      }
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
        x.dv[index(j * p_.head_dim_v + d)] += x.p[n] * x.dout[index(d)];
      }
    }
    store(a_.dq, row_offset_q(s, g_.dq, i, h), g_.dq.dim, x.dq.data(), p_.head_dim);
  }

  const AttentionProblem& p_;
  const GradientProblem& g_;
  const ForwardArguments& f_;
  const BackwardArguments& a_;
};

}  // namespace

void run_reference(const Plan& plan, const BackwardArguments& args, std::span<std::byte> /*workspace*/) {
  const AttentionProblem& problem = *plan.problem;
  const ReferenceBackward backward(problem, args);
  const TensorView& dbias = args.dbias;
  std::vector<Scratch> scratches;
  scratches.reserve(static_cast<std::size_t>(plan.num_threads));
  for (int thread = 0; thread < plan.num_threads; ++thread) scratches.emplace_back(problem, dbias.shape[3]);
  const std::int64_t bias_rows =
      problem.gradient->has_dbias ? dbias.shape[0] * dbias.shape[1] * dbias.shape[2] : 0;
  fill_unowned_rows(problem, args);
  const std::int64_t num_items = problem.batch * problem.num_heads_k;
  const std::int64_t num_sinks = problem.gradient->has_dsinks ? problem.num_heads_q : 0;
#pragma omp parallel num_threads(plan.num_threads)
  {
    Scratch& scratch = scratches[static_cast<std::size_t>(omp_get_thread_num())];
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < num_items; ++item) {
      backward.key_head(item / problem.num_heads_k, item % problem.num_heads_k, scratch);
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t n = 0; n < bias_rows; ++n) {
      const std::int64_t i = n % dbias.shape[2], bh = n / dbias.shape[2];
      backward.bias_row(bh / dbias.shape[1], bh % dbias.shape[1], i, scratch);
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t h = 0; h < num_sinks; ++h) backward.sink(h);
  }
}

}  // namespace onepass::cpu
