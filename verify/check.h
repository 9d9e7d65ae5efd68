// The judgement of spec section 5: a result against the float64 evaluation of the same inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "onepass/attention.h"
#include "problem/case_text.h"
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

struct CheckReport {
  bool passed = true;
  std::string failure;  // the first broken rule in one sentence; empty when passed

  std::int64_t num_out = 0, num_lse = 0;  // elements compared
  Worst out;                              // e is out.error, required <= out.bound = 2 e0 + 1e-5
  double plain_error = 0;                 // e0: of the plain evaluation in q's dtype
  double frobenius = 0, frobenius_bound = 0;
  Worst lse;

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

/// How to run a case.
struct CheckHow {
  Backend backend = Backend::Auto;
  int num_threads = 0;
  std::string instruction_set;  // of the CPU SIMD backend; empty: the best. Process-wide while the case runs.
};

/// Makes the tensors of a case, plans and runs it with a workspace of exactly the planned size, and judges
/// the result; also that nothing outside the outputs and the workspace was written. With Backend::Cuda the
/// tensors are copied to GPU 0 and back (gpu_call.h).
/// @throws what plan() and run() throw; EnvironmentError when a GPU is asked for and there is none.
CheckReport check_case(const Case& c, const CheckHow& how = {}, const CheckProgress& progress = {});

/// "onepass check <case> --backend cpu --threads 3 --instruction-set AVX2", defaults left out.
std::string repeat_line(const Case& c, const CheckHow& how);

}  // namespace onepass::verify
