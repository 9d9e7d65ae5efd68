// The judgement of spec section 5: a result against the float64 evaluation of the same inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "onepass/attention.h"
#include "problem/case_text.h"
#include "verify/gradient_oracle.h"
#include "verify/oracle.h"

namespace onepass::verify {

/// One element of a result.
struct Place {
  std::int64_t batch = -1;  // -1: a row of no sequence
  std::int64_t row = 0;     // of its sequence, or of the packed buffer when batch is -1
  std::int64_t head = 0;
  std::int64_t channel = -1;  // -1: of the LSE
};
std::string to_string(const Place& place);

/// The element that is worst, measured against what it may be off.
struct Worst {
  Place place;
  double got = 0, want = 0;
  double error = 0, bound = 0;
};

/// The judgement of one gradient of a backward call.
struct GradientReport {
  const char* name = "";
  std::int64_t num_elements = 0;
  std::vector<std::int64_t> worst_index;  // in its view
  double got = 0, want = 0;
  double error = 0, bound = 0;  // e, required <= 2 e0 + 1e-5
  double plain_error = 0;       // e0
  double frobenius = 0, frobenius_bound = 0;
};

/// One line.
std::string to_string(const GradientReport& report);

struct CheckReport {
  bool passed = true;
  std::string failure;  // the first broken rule in one sentence; empty when passed

  std::int64_t num_out = 0, num_lse = 0;  // elements compared
  Worst out;                              // e is out.error, required <= out.bound = 2 e0 + 1e-5
  double plain_error = 0;                 // e0: of the plain evaluation in q's dtype
  double frobenius = 0, frobenius_bound = 0;
  Worst lse;

  std::vector<GradientReport> gradients;  // of a backward call, which has the numbers above at 0

  std::string repeat;  // the command line that repeats the check; empty when unknown

  /// A few lines for people; each ends in '\n'.
  std::string text() const;
};

/// Called with the share that is done.
using CheckProgress = std::function<void(double)>;

/// Judges args.out and, if present, args.softmax_lse, which a call with these arguments and options wrote.
/// Order: places of NaN and inf, rows of no sequence and rows without a key (exact), the largest error, the
/// relative Frobenius error, LSE.
CheckReport check_result(const ForwardArguments& args, const ForwardOptions& options,
                         const CheckProgress& progress = {});

/// The same with an evaluation that the caller already has, of the same inputs and options.
CheckReport judge(const ForwardArguments& args, const Evaluation& evaluation);

/// Judges the gradients that a backward call with these arguments and options wrote. Order: places of NaN and
/// inf, gradients that no pair counts for (exactly 0), the largest error, the Frobenius error. A gradient is
/// a sum of differences, so where it is small beside its terms the plain evaluation's own Frobenius error
/// counts: the error is at most the larger of the bound's share of the norm and twice the plain evaluation's,
/// plus 1e-5 for each element. The largest error may be 1e-5 beyond twice the plain evaluation's, or that
/// times sqrt(n / 64) where the longest sum has n > 64 terms: where rows see one key they cancel.
CheckReport check_gradients(const BackwardArguments& args, const ForwardOptions& options,
                            const CheckProgress& progress = {});
/// The same with an evaluation that the caller already has.
CheckReport judge(const BackwardArguments& args, const GradientEvaluation& evaluation);

/// How to run a case.
struct CheckHow {
  Backend backend = Backend::Auto;
  int num_threads = 0;
  std::string instruction_set;  // of the CPU SIMD backend; empty: the best. Process-wide while the case runs.
};

/// Frobenius norms of errors, relative, that fail whatever the largest error is.
double frobenius_bound(DType dtype);
/// Below this a result of `dtype` has no relative precision (subnormal numbers, which a CPU may flush to 0),
/// so the relative error does not count it.
double negligible_error(DType dtype);
/// The value as memory of `dtype` holds it: 1e6 is infinite in f16.
double as_stored(DType dtype, double x);
/// NaN against NaN, infinity against the same infinity, finite against finite.
bool same_kind(double got, double want);

/// Makes the tensors of a case, plans and runs it with a workspace of exactly the planned size, and judges
/// the result; also that nothing outside the outputs and the workspace was written. With Backend::Cuda the
/// tensors are copied to GPU 0 and back (gpu_call.h).
/// @throws what plan() and run() throw; EnvironmentError when a GPU is asked for and there is none.
CheckReport check_case(const Case& c, const CheckHow& how = {}, const CheckProgress& progress = {});

/// "onepass check <case> --backend cpu --threads 3 --instruction-set AVX2", defaults left out.
std::string repeat_line(const Case& c, const CheckHow& how);

}  // namespace onepass::verify
