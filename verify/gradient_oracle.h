// The formulas of spec section 4, word for word, in float64, and the plain evaluation beside them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "onepass/attention.h"

namespace onepass::verify {

/// One gradient, row-major in its view's shape; empty when the call does not ask for it.
struct EvaluatedGradient {
  std::vector<double> exact;
  std::vector<float> plain;  // S, P, dP and dS materialised in q's dtype, sums in f32, the result rounded
  /// How many pairs of a query and a key count, by groups of `width` elements: a row of dq, dk and dv. A
  /// gradient that no pair counts for is exactly 0.
  std::vector<std::uint32_t> counts;
  std::int64_t width = 1;
};

struct GradientEvaluation {
  EvaluatedGradient dq, dk, dv, dsinks, dbias;
};

/// Evaluates a backward call whose arguments are valid; out and softmax_lse are inputs like others. Uses
/// every core, but for a call with dbias; `progress`, when given, hears the share that is done.
GradientEvaluation evaluate_gradients(const BackwardArguments& args, const ForwardOptions& options,
                                      const std::function<void(double)>& progress = {});

}  // namespace onepass::verify
