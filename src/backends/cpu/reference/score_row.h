// The scores of one query row in float64, as spec section 2 writes them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "backends/cpu/sequence.h"
#include "support/float_types.h"

namespace onepass::cpu {

inline double value_at(const TensorView& view, std::int64_t offset) {
  return static_cast<double>(load_float(view.data, view.dtype, offset));
}

/// Room for the longest row: nothing may throw inside a parallel region.
struct ScoreRow {
  explicit ScoreRow(const AttentionProblem& problem) {
    query.reserve(static_cast<std::size_t>(problem.head_dim));
    scores.reserve(static_cast<std::size_t>(problem.seqlen_k));
    softcap_slopes.reserve(static_cast<std::size_t>(problem.seqlen_k));
  }

  KeyRange keys{};             // that the mask allows
  std::vector<double> query;   // (head_dim)
  std::vector<double> scores;  // of keys [keys.begin, keys.end)
  std::vector<double>
      softcap_slopes;  // derivative of the capped score with respect to that before; 1 if uncapped
};

/// Fills `row` for row i of head h and returns the largest score, -inf for none.
inline double fill_score_row(const AttentionProblem& problem, const ForwardArguments& args, const Sequence& s,
                             std::int64_t h, std::int64_t i, ScoreRow& row) {
  const std::int64_t hk = h / problem.group();
  const std::int64_t q_row = row_offset_q(s, problem.q, i, h);
  row.keys = visible_keys(band_of(problem, s), s.seqlen_k, i, i + 1);
  row.query.resize(static_cast<std::size_t>(problem.head_dim));
  for (std::int64_t d = 0; d < problem.head_dim; ++d) {
    row.query[static_cast<std::size_t>(d)] = value_at(args.q, q_row + d * problem.q.dim);
  }
  const double slope = problem.has_alibi ? per_head_value(args.alibi_slopes, s.batch_idx, h) : 0.0;
  const std::int64_t bias_row = problem.has_bias ? bias_row_offset(args.bias, s.batch_idx, h, i) : 0;

  const auto count = static_cast<std::size_t>(row.keys.end - row.keys.begin);
  row.scores.resize(count);
  row.softcap_slopes.resize(count);
  double max_score = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) {
    const auto n = static_cast<std::size_t>(j - row.keys.begin);
    const std::int64_t k_row = row_offset_k(problem, args, s, problem.k, j, hk);
    double dot = 0.0;
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      dot += row.query[static_cast<std::size_t>(d)] * value_at(args.k, k_row + d * problem.k.dim);
    }
    const double k_descale = row_descale(problem, args, s, args.k_descale, j, hk);
    double score = problem.softmax_scale * (dot * k_descale);
    row.softcap_slopes[n] = 1.0;
    if (problem.softcap > 0) {
      const double t = std::tanh(score / problem.softcap);
      score = problem.softcap * t;
      row.softcap_slopes[n] = 1.0 - t * t;
    }
    if (problem.has_alibi) score -= slope * std::abs(static_cast<double>(i + s.diagonal() - j));
    if (problem.has_bias) score += value_at(args.bias, bias_row + j * args.bias.strides[3]);
    row.scores[n] = score;
    max_score = std::max(max_score, score);
  }
  return max_score;
}

}  // namespace onepass::cpu
