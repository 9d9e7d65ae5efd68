#include "verify/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "backends/cpu/backend.h"
#include "problem/attention_problem.h"
#include "support/float_types.h"
#include "verify/case_tensors.h"
#include "verify/gpu_call.h"
#include "verify/gradient_tensors.h"

namespace onepass::verify {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double lse_bound(DType dtype, double lse) {
  return dtype == DType::F32 ? 1e-5 * (1 + std::abs(lse)) : 1e-3 + 1e-5 * std::abs(lse);
}

class Judge {
 public:
  Judge(const ForwardArguments& args, const Evaluation& evaluation) : a_(args), e_(evaluation) {}

  CheckReport judge() {
    for (std::int64_t row = 0; row < e_.num_rows; ++row) {
      for (std::int64_t h = 0; h < e_.num_heads; ++h) {
        const std::int64_t offset = out_offset(row, h),
                           stride = a_.out.strides[static_cast<std::size_t>(a_.out.rank - 1)];
        for (std::int64_t d = 0; d < e_.head_dim_v; ++d) {
          out_element(row, h, d,
                      static_cast<double>(load_float(a_.out.data, a_.out.dtype, offset + d * stride)));
        }
        if (a_.softmax_lse.present()) lse_element(row, h);
      }
    }
    conclude();
    return report_;
  }

 private:
  struct Element {
    Place place;
    double got = 0, want = 0;
  };

  Place place(std::int64_t row, std::int64_t h, std::int64_t d) const {
    const RowOwner& owner = e_.owners[static_cast<std::size_t>(row)];
    return {owner.batch, owner.batch < 0 ? row : owner.row, h, d};
  }

  bool packed() const { return a_.q.rank == 3; }

  std::int64_t out_offset(std::int64_t row, std::int64_t h) const {
    const auto& s = a_.out.strides;
    if (packed()) return row * s[0] + h * s[1];
    return row / a_.out.shape[1] * s[0] + row % a_.out.shape[1] * s[1] + h * s[2];
  }

  double got_lse(std::int64_t row, std::int64_t h) const {
    const TensorView& lse = a_.softmax_lse;
    const auto& s = lse.strides;
    const std::int64_t offset =
        packed() ? h * s[0] + row * s[1] : row / lse.shape[2] * s[0] + h * s[1] + row % lse.shape[2] * s[2];
    return static_cast<double>(static_cast<const float*>(lse.data)[offset]);
  }

  void out_element(std::int64_t row, std::int64_t h, std::int64_t d, double got) {
    const std::int64_t cell = row * e_.num_heads + h;
    const auto n = static_cast<std::size_t>(cell * e_.head_dim_v + d);
    const double want = e_.out[n];
    ++report_.num_out;
    if (!same_kind(got, as_stored(a_.out.dtype, want)))
      return fail_kind("out", {place(row, h, d), got, want});
    if (e_.sees_keys[static_cast<std::size_t>(cell)] == 0 && got != 0) {
      return fail_exact("out", {place(row, h, d), got, 0.0});
    }
    if (!std::isfinite(got) || !std::isfinite(want)) return;
    const double error = std::abs(got - want);
    if (error > negligible_error(a_.out.dtype)) error_squares_ += error * error;
    want_squares_ += want * want;
    if (error > report_.out.error || report_.num_out == 1)
      report_.out = {place(row, h, d), got, want, error, 0};
    const auto plain = static_cast<double>(e_.plain_out[n]);
    if (std::isfinite(plain)) report_.plain_error = std::max(report_.plain_error, std::abs(plain - want));
  }

  void lse_element(std::int64_t row, std::int64_t h) {
    const auto cell = static_cast<std::size_t>(row * e_.num_heads + h);
    const double want = e_.lse[cell], got = got_lse(row, h);
    ++report_.num_lse;
    if (!same_kind(got, as_stored(DType::F32, want)))
      return fail_kind("softmax_lse", {place(row, h, -1), got, want});
    if (!std::isfinite(want) || !std::isfinite(got)) return;
    const double error = std::abs(got - want);
    const double bound = lse_bound(a_.q.dtype, want);
    if (report_.lse.bound == 0 || error / bound > report_.lse.error / report_.lse.bound) {
      report_.lse = {place(row, h, -1), got, want, error, bound};
    }
  }

  void fail_kind(const char* tensor, const Element& at) {
    fail(fmt::format("{} is {} at {}, but {} in float64", tensor, without_nan_sign(at.got),
                     to_string(at.place), without_nan_sign(at.want)));
  }

  void fail_exact(const char* tensor, const Element& at) {
    fail(fmt::format("{} is {} at {}, a row without keys: exactly {} is required", tensor, at.got,
                     to_string(at.place), at.want));
  }

  void fail(const std::string& sentence) {
    if (report_.passed) report_.failure = sentence;
    report_.passed = false;
  }

  void conclude() {
    report_.out.bound = 2 * report_.plain_error + 1e-5;
    if (report_.out.error > report_.out.bound) {
      const Worst& w = report_.out;
      fail(fmt::format("out is {:.9g} at {}, but {:.9g} in float64: error {:.3g}, bound {:.3g}", w.got,
                       to_string(w.place), w.want, w.error, w.bound));
    }
    report_.frobenius_bound = frobenius_bound(a_.q.dtype);
    report_.frobenius = error_squares_ == 0  ? 0.0
                        : want_squares_ == 0 ? kInf
                                             : std::sqrt(error_squares_ / want_squares_);
    if (report_.frobenius > report_.frobenius_bound) {
      fail(fmt::format(
          "the relative Frobenius error of out is {:.3g}, bound {:.3g} (worst at {}: {:.9g} against {:.9g})",
          report_.frobenius, report_.frobenius_bound, to_string(report_.out.place), report_.out.got,
          report_.out.want));
    }
    if (report_.lse.error > report_.lse.bound) {
      const Worst& w = report_.lse;
      fail(fmt::format("softmax_lse is {:.9g} at {}, but {:.9g} in float64: error {:.3g}, bound {:.3g}",
                       w.got, to_string(w.place), w.want, w.error, w.bound));
    }
  }

  const ForwardArguments& a_;
  const Evaluation& e_;
  double error_squares_ = 0, want_squares_ = 0;
  CheckReport report_;
};

/// Uses one instruction set of the CPU SIMD backend for as long as it lives.
class ForcedInstructionSet {
 public:
  explicit ForcedInstructionSet(const std::string& name) : forced_(!name.empty()) {
    if (forced_) cpu::force_simd_instruction_set(name);
  }
  ~ForcedInstructionSet() {
    if (forced_) cpu::force_simd_instruction_set("");
  }
  ForcedInstructionSet(const ForcedInstructionSet&) = delete;
  ForcedInstructionSet& operator=(const ForcedInstructionSet&) = delete;

 private:
  bool forced_;
};

std::string elements_line(const char* name, const Worst& w, std::int64_t count) {
  return fmt::format("{}: {} elements, worst at {}: {:.9g}, float64 {:.9g}, error {:.3g}, bound {:.3g}\n",
                     name, count, to_string(w.place), w.got, w.want, w.error, w.bound);
}

/// Runs into the outputs of `args`; returns what beside the tensors was written, empty when nothing.
template <class Arguments>
std::optional<std::string> run_on(const Arguments& args, const ForwardOptions& options) {
  if (options.backend == Backend::Cuda) {
    const BasicGpuCall<Arguments> call("check", args, options);
    call.run();
    return call.copy_back();
  }
  const Plan planned = plan(args, options);
  GuardedBuffer workspace(planned.workspace_bytes());
  run(planned, args, {static_cast<std::byte*>(workspace.data()), workspace.size()});
  if (workspace.guards_intact()) return std::nullopt;
  return "memory beside the workspace was written";
}

CheckReport check(const ForwardArguments& args, const ForwardOptions& options,
                  const CheckProgress& progress) {
  return check_result(args, options, progress);
}
CheckReport check(const BackwardArguments& args, const ForwardOptions& options,
                  const CheckProgress& progress) {
  return check_gradients(args, options, progress);
}

template <class Tensors>
CheckReport check_tensors(Tensors tensors, const Case& c, const CheckHow& how,
                          const CheckProgress& progress) {
  tensors.options.backend = how.backend;
  tensors.options.num_threads = how.num_threads;
  const ForcedInstructionSet forced(how.instruction_set);
  const std::optional<std::string> beside = run_on(tensors.args, tensors.options);
  CheckReport report = check(tensors.args, tensors.options, progress);
  if (const std::optional<std::string> damage = beside ? beside : tensors.damage()) {
    report.passed = false;
    report.failure = *damage;
  }
  report.repeat = repeat_line(c, how);
  return report;
}

}  // namespace

double frobenius_bound(DType dtype) {
  switch (dtype) {
    case DType::BF16: return 1e-2;
    case DType::F16: return 2e-3;
    default: return 1e-5;
  }
}

double negligible_error(DType dtype) {
  return dtype == DType::F16 ? 0x1p-25 : static_cast<double>(std::numeric_limits<float>::min());
}

double as_stored(DType dtype, double x) {
  std::uint32_t memory = 0;
  store_float(&memory, dtype, 0, static_cast<float>(x));
  return static_cast<double>(load_float(&memory, dtype, 0));
}

bool same_kind(double got, double want) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  return std::isfinite(got);
}

std::string to_string(const Place& place) {
  std::string text = place.batch < 0 ? fmt::format("row {} of no sequence", place.row)
                                     : fmt::format("sequence {} row {}", place.batch, place.row);
  text += fmt::format(" head {}", place.head);
  if (place.channel >= 0) text += fmt::format(" channel {}", place.channel);
  return text;
}

std::string CheckReport::text() const {
  std::string text = passed ? "passed\n" : fmt::format("FAILED: {}\n", failure);
  if (num_out > 0) {
    text += elements_line("out", out, num_out);
    text += fmt::format("  plain evaluation error {:.3g}; relative Frobenius error {:.3g}, bound {:.3g}\n",
                        plain_error, frobenius, frobenius_bound);
  }
  if (num_lse > 0) text += elements_line("softmax_lse", lse, num_lse);
  for (const GradientReport& g : gradients) text += to_string(g) + "\n";
  if (!repeat.empty()) text += fmt::format("repeat with: {}\n", repeat);
  return text;
}

CheckReport check_result(const ForwardArguments& args, const ForwardOptions& options,
                         const CheckProgress& progress) {
  return judge(args, evaluate(args, options, progress));
}

CheckReport judge(const ForwardArguments& args, const Evaluation& evaluation) {
  return Judge(args, evaluation).judge();
}

CheckReport check_case(const Case& c, const CheckHow& how, const CheckProgress& progress) {
  if (c.backward) return check_tensors(make_gradient_tensors(c), c, how, progress);
  return check_tensors(make_tensors(c), c, how, progress);
}

std::string repeat_line(const Case& c, const CheckHow& how) {
  std::string line = "onepass check " + to_string(c);
  if (how.backend != Backend::Auto) line += fmt::format(" --backend {}", backend_name(how.backend));
  if (how.num_threads > 0) line += fmt::format(" --threads {}", how.num_threads);
  if (!how.instruction_set.empty()) line += fmt::format(" --instruction-set {}", how.instruction_set);
  return line;
}

}  // namespace onepass::verify
