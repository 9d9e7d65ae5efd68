// The judgement of gradients.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "support/float_types.h"
#include "support/message.h"
#include "verify/check.h"
#include "verify/gradient_tensors.h"
#include "verify/tensor_views.h"

namespace onepass::verify {
namespace {

/// What f32 sums may be off by where their terms cancel: 1e-5, growing with the square root of more than 64.
double sum_noise(const EvaluatedGradient& e) {
  const auto most = std::max_element(e.counts.begin(), e.counts.end());
  return 1e-5 * std::max(1.0, std::sqrt(most == e.counts.end() ? 0.0 : *most / 64.0));
}

/// The first broken rule, empty when there is none; fills `report`.
std::string judge_gradient(const TensorView& view, const EvaluatedGradient& e, DType bounds,
                           GradientReport& report) {
  std::string failure;
  const auto fail = [&](const std::string& sentence) {
    if (failure.empty()) failure = sentence;
  };
  double error_squares = 0, want_squares = 0, plain_squares = 0;
  each_element(view, [&](std::size_t n, std::span<const std::int64_t> idx, double got) {
    const double want = e.exact[n], plain = static_cast<double>(e.plain[n]);
    if (!same_kind(got, as_stored(view.dtype, want))) {
      fail(fmt::format("{} is {} at {}, but {} in float64", report.name, without_nan_sign(got),
                       list_string(idx), without_nan_sign(want)));
      return;
    }
    if (e.counts[n / static_cast<std::size_t>(e.width)] == 0 && got != 0) {
      fail(fmt::format("{} is {} at {}, where no pair of a query and a key counts: exactly 0 is required",
                       report.name, got, list_string(idx)));
    }
    if (!std::isfinite(got) || !std::isfinite(want)) return;
    const double error = std::abs(got - want);
    if (error > negligible_error(view.dtype)) error_squares += error * error;
    want_squares += want * want;
    if (error > report.error || report.worst_index.empty()) {
      report.worst_index.assign(idx.begin(), idx.end());
      report.got = got;
      report.want = want;
      report.error = error;
    }
    if (!std::isfinite(plain)) return;
    report.plain_error = std::max(report.plain_error, std::abs(plain - want));
    plain_squares += (plain - want) * (plain - want);
  });
  report.num_elements = view.num_elements();
  report.bound = 2 * report.plain_error + sum_noise(e);
  if (report.error > report.bound) {
    fail(fmt::format("{} is {:.9g} at {}, but {:.9g} in float64: error {:.3g}, bound {:.3g}", report.name,
                     report.got, list_string(report.worst_index), report.want, report.error, report.bound));
  }
  report.frobenius = std::sqrt(error_squares);
  report.frobenius_bound =
      std::max(frobenius_bound(bounds) * std::sqrt(want_squares),
               2 * std::sqrt(plain_squares) + 1e-5 * std::sqrt(static_cast<double>(report.num_elements)));
  if (report.frobenius > report.frobenius_bound) {
    fail(fmt::format("the Frobenius error of {} is {:.3g}, bound {:.3g} (worst at {}: {:.9g} against {:.9g})",
                     report.name, report.frobenius, report.frobenius_bound, list_string(report.worst_index),
                     report.got, report.want));
  }
  return failure;
}

}  // namespace

std::string to_string(const GradientReport& g) {
  return fmt::format(
      "{}: {} elements, worst at {}: {:.9g}, float64 {:.9g}, error {:.3g}, bound {:.3g}; Frobenius "
      "error {:.3g}, bound {:.3g}",
      g.name, g.num_elements, list_string(g.worst_index), g.got, g.want, g.error, g.bound, g.frobenius,
      g.frobenius_bound);
}

CheckReport judge(const BackwardArguments& args, const GradientEvaluation& e) {
  const std::array<const EvaluatedGradient*, 5> evaluated = {&e.dq, &e.dk, &e.dv, &e.dsinks, &e.dbias};
  CheckReport report;
  std::size_t n = 0;
  for (const auto& [name, view] : gradients_of(args)) {
    const EvaluatedGradient& gradient = *evaluated.at(n++);
    if (!view->present() || view->num_elements() == 0) continue;
    GradientReport& judged = report.gradients.emplace_back();
    judged.name = name;
    const std::string failure = judge_gradient(*view, gradient, args.forward.q.dtype, judged);
    if (failure.empty()) continue;
    if (report.passed) report.failure = failure;
    report.passed = false;
  }
  return report;
}

CheckReport check_gradients(const BackwardArguments& args, const ForwardOptions& options,
                            const CheckProgress& progress) {
  return judge(args, evaluate_gradients(args, options, progress));
}

}  // namespace onepass::verify
