// What the numbers are tested on: the reference and the SIMD backend, the latter with every instruction set
// that
// this machine can run, in each dtype.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/backend.h"
#include "onepass/attention.h"
#include "verify/case_tensors.h"
#include "verify/check.h"
#include "verify/guarded_buffer.h"

namespace onepass {

struct Target {
  Backend backend = Backend::Reference;
  std::string instruction_set;  // of the SIMD backend
  DType dtype = DType::F32;     // of q and out

  std::string name() const {
    return (backend == Backend::Reference ? "reference" : "cpu " + instruction_set) + " " + dtype_name(dtype);
  }
  /// How far a value may be off that is exact but for the rounding of the output (and of a probability or
  /// two).
  double rounding() const { return dtype == DType::F32 ? 2e-6 : dtype == DType::F16 ? 0x1.1p-11 : 0x1.1p-8; }
  double near(double value) const { return rounding() * (value < 0 ? -value : value); }
};

inline constexpr std::initializer_list<DType> kFloatTypes = {DType::F32, DType::F16, DType::BF16};

inline std::vector<Target> targets(std::initializer_list<DType> dtypes = kFloatTypes) {
  std::vector<Target> all;
  for (const DType dtype : dtypes) {
    all.push_back({Backend::Reference, "", dtype});
    for (const std::string& name : cpu::simd_instruction_sets()) all.push_back({Backend::Cpu, name, dtype});
  }
  return all;
}

/// Uses the target's instruction set for as long as it lives.
class OnTarget {
 public:
  explicit OnTarget(const Target& target) { cpu::force_simd_instruction_set(target.instruction_set); }
  ~OnTarget() { cpu::force_simd_instruction_set(""); }
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;
};

/// Plans and runs on a target with a workspace of exactly the planned size, and sees that its ends stay
/// untouched.
inline void run_on(const Target& target, const ForwardArguments& args, ForwardOptions options) {
  const OnTarget forced(target);
  options.backend = target.backend;
  const Plan planned = plan(args, options);
  verify::GuardedBuffer workspace(planned.workspace_bytes());
  run(planned, args, {static_cast<std::byte*>(workspace.data()), workspace.size()});
  EXPECT_TRUE(workspace.guards_intact()) << "memory beside the workspace was written";
}

/// Holds a case, named without its dtype ("b1_hq2_sq5_d8"), to the float64 evaluation on the reference
/// backend and on
/// every instruction set.
inline void check_on_targets(std::initializer_list<DType> dtypes, const std::string& text,
                             int num_threads = 2) {
  for (const DType dtype : dtypes) {
    const Case c = parse_case(std::string(dtype_name(dtype)) + "_" + text);
    verify::CaseTensors tensors = verify::make_tensors(c);
    tensors.options.num_threads = num_threads;
    const verify::Evaluation evaluation = verify::evaluate(tensors.args, tensors.options);
    for (const Target& target : targets({dtype})) {
      SCOPED_TRACE(verify::repeat_line(c, {target.backend, num_threads, target.instruction_set}));
      tensors.poison_outputs();
      run_on(target, tensors.args, tensors.options);
      const verify::CheckReport report = verify::judge(tensors.args, evaluation);
      EXPECT_TRUE(report.passed) << report.text();
      EXPECT_EQ(tensors.damage(), std::nullopt);
    }
  }
}

/// body(target) for each, with the target's name beside failures.
template <class Body>
void on_targets(std::initializer_list<DType> dtypes, Body body) {
  for (const Target& target : targets(dtypes)) {
    SCOPED_TRACE(target.name());
    body(target);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

template <class Body>
void on_every_target(Body body) {
  on_targets(kFloatTypes, body);
}

}  // namespace onepass
