// What the numbers are tested on: the reference, the SIMD backend with every instruction set that this
// machine can run, and the GPU where there is one, each in every dtype that it takes.
//
// ONEPASS_TEST_TARGETS=<words> keeps some of them: "cuda", or a list such as "reference,cpu".
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include "backends/cpu/backend.h"
#include "backends/cuda/host/driver.h"
#include "backends/cuda/host/forward.h"
#include "onepass/attention.h"
#include "plan/make_plan.h"
#include "problem/attention_problem.h"
#include "verify/case_tensors.h"
#include "verify/check.h"
#include "verify/gpu_call.h"
#include "verify/gradient_tensors.h"
#include "verify/guarded_buffer.h"

namespace onepass {

struct Target {
  Backend backend = Backend::Reference;
  std::string instruction_set;  // of the SIMD backend
  DType dtype = DType::F32;     // of q and out

  std::string name() const {
    return std::string(backend_name(backend)) + " " + (instruction_set.empty() ? "" : instruction_set + " ") +
           dtype_name(dtype);
  }
  bool on_gpu() const { return backend == Backend::Cuda; }
  /// How far a value may be off that is exact but for the rounding of the output (and of a probability or
  /// two).
  double rounding() const { return dtype == DType::F32 ? 2e-6 : dtype == DType::F16 ? 0x1.1p-11 : 0x1.1p-8; }
  double near(double value) const { return rounding() * (value < 0 ? -value : value); }
};

inline constexpr std::initializer_list<DType> kFloatTypes = {DType::F32, DType::F16, DType::BF16};

/// Whether ONEPASS_TEST_TARGETS names the backend. Without the variable: whether this machine has it.
inline bool target_wanted(Backend backend) {
  const char* words = std::getenv("ONEPASS_TEST_TARGETS");
  const bool there = backend != Backend::Cuda || cuda::Driver::instance() != nullptr;
  if (words == nullptr) return there;
  std::istringstream list(words);
  for (std::string word; std::getline(list, word, ',');) {
    if (word != backend_name(backend)) continue;
    if (!there) throw EnvironmentError("ONEPASS_TEST_TARGETS names cuda: " + cuda::Driver::missing_reason());
    return true;
  }
  return false;
}

inline std::vector<Target> targets(std::initializer_list<DType> dtypes = kFloatTypes) {
  std::vector<Target> all;
  for (const DType dtype : dtypes) {
    if (target_wanted(Backend::Reference)) all.push_back({Backend::Reference, "", dtype});
    if (target_wanted(Backend::Cpu)) {
      for (const std::string& name : cpu::simd_instruction_sets()) all.push_back({Backend::Cpu, name, dtype});
    }
    if (dtype != DType::F32 && target_wanted(Backend::Cuda)) all.push_back({Backend::Cuda, "", dtype});
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

/// Plans and runs on a target of the CPU with a workspace of exactly the planned size, and sees that its ends
/// stay untouched.
template <class Arguments>
void run_on_cpu(const Target& target, const Arguments& args, ForwardOptions options) {
  const OnTarget forced(target);
  options.backend = target.backend;
  const Plan planned = plan(args, options);
  verify::GuardedBuffer workspace(planned.workspace_bytes());
  run(planned, args, {static_cast<std::byte*>(workspace.data()), workspace.size()});
  EXPECT_TRUE(workspace.guards_intact()) << "memory beside the workspace was written";
}

/// Likewise on any target. A GPU gets copies of the tensors, between guards that are looked at too.
template <class Arguments>
void run_on(const Target& target, const Arguments& args, ForwardOptions options) {
  if (!target.on_gpu()) return run_on_cpu(target, args, options);
  options.backend = target.backend;
  const verify::BasicGpuCall<Arguments> call("run", args, options);
  call.run();
  EXPECT_EQ(call.copy_back(), std::nullopt);
}

/// Whether the planner of GPU 0 takes a case: f16 and bf16, head_dim_v up to 512, stride 1 in the last
/// dimension.
inline bool gpu_takes(const Case& c) {
  static const DeviceInfo gpu = cuda::device_info(0);
  ForwardOptions options = verify::case_shapes(c).options;
  options.backend = Backend::Cuda;
  try {
    make_plan("plan", verify::problem_of_case("plan", c, options), {Backend::Cuda, 0, options.num_splits},
              gpu);
    return true;
  } catch (const NotSupported&) {
    return false;
  }
}

inline const char* no_target_reason() { return "ONEPASS_TEST_TARGETS leaves no target for these dtypes"; }

inline verify::Evaluation evaluate_call(const ForwardArguments& args, const ForwardOptions& options) {
  return verify::evaluate(args, options);
}
inline verify::GradientEvaluation evaluate_call(const BackwardArguments& args,
                                                const ForwardOptions& options) {
  return verify::evaluate_gradients(args, options);
}

template <class Tensors>
void check_tensors_on(const std::vector<Target>& all, const Case& c, Tensors tensors, int num_threads) {
  tensors.options.num_threads = num_threads;
  const auto evaluation = evaluate_call(tensors.args, tensors.options);
  for (const Target& target : all) {
    if (target.on_gpu() && !gpu_takes(c)) continue;
    SCOPED_TRACE(verify::repeat_line(c, {target.backend, num_threads, target.instruction_set}));
    tensors.poison_outputs();
    run_on(target, tensors.args, tensors.options);
    const verify::CheckReport report = verify::judge(tensors.args, evaluation);
    EXPECT_TRUE(report.passed) << report.text();
    EXPECT_EQ(tensors.damage(), std::nullopt);
  }
}

/// Holds a case, named without its dtype ("b1_hq2_sq5_d8"), to the float64 evaluation on every target
/// that takes it.
inline void check_on_targets(std::initializer_list<DType> dtypes, const std::string& text,
                             int num_threads = 2) {
  for (const DType dtype : dtypes) {
    const std::vector<Target> all = targets({dtype});
    if (all.empty()) continue;
    const Case c = parse_case(std::string(dtype_name(dtype)) + "_" + text);
    if (c.backward) {
      check_tensors_on(all, c, verify::make_gradient_tensors(c), num_threads);
    } else {
      check_tensors_on(all, c, verify::make_tensors(c), num_threads);
    }
  }
}

/// body(target) for each of `list`, with the target's name beside failures.
template <class Body>
void on_each(const std::vector<Target>& list, Body body) {
  if (list.empty()) GTEST_SKIP() << no_target_reason();
  for (const Target& target : list) {
    SCOPED_TRACE(target.name());
    body(target);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

template <class Body>
void on_targets(std::initializer_list<DType> dtypes, Body body) {
  on_each(targets(dtypes), body);
}

template <class Body>
void on_every_target(Body body) {
  on_each(targets(), body);
}

/// For what a GPU answers in another way (tests/cuda has its tests) or does not take.
template <class Body>
void on_cpu_targets(Body body) {
  std::vector<Target> list = targets();
  std::erase_if(list, [](const Target& target) { return target.on_gpu(); });
  on_each(list, body);
}

}  // namespace onepass
