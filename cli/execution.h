// Carrying out a plan, with its time and its exact work.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "cli/options.h"
#include "onepass/attention.h"
#include "problem/attention_problem.h"

namespace onepass::cli {

/// Forces an instruction set of the CPU SIMD backend for the whole process; empty leaves the best one.
/// @throws InvalidArgument for one that this machine cannot run.
void use_instruction_set(const std::string& name);

/// `options` with the backend and threads of `execution`, and its splits unless 0 (a case may name its own).
ForwardOptions with_execution(ForwardOptions options, const ExecutionOptions& execution);

/// The processor that a backend plans for: GPU 0 for 'cuda', else this CPU. `call` begins messages.
/// @throws EnvironmentError when it is not there.
DeviceInfo device_of(Backend backend, const char* call);

/// A call on tensors in host memory, planned and ready to run.
class Execution {
 public:
  virtual ~Execution() = default;
  virtual const Plan& plan() const = 0;
  /// Runs once, leaves the outputs in host memory, and returns the seconds that the computation took.
  virtual double run() = 0;
};

/// Checks everything, index values included, so that run() meets no wrong argument. `call` begins messages.
/// @throws InvalidArgument, NotSupported, EnvironmentError.
std::unique_ptr<Execution> make_execution(const char* call, const ForwardArguments& args,
                                          const ForwardOptions& options);

/// A plan for this CPU and its workspace, to be run any number of times.
class CpuExecution : public Execution {
 public:
  /// As make_execution.
  CpuExecution(const char* call, const ForwardArguments& args, const ForwardOptions& options);

  const Plan& plan() const override { return plan_; }
  double run() override { return run(args_); }
  /// The same on other tensors of equal shapes, strides and lengths.
  double run(const ForwardArguments& args) const;

 private:
  ForwardArguments args_;
  Plan plan_;
  std::shared_ptr<std::byte[]> workspace_;
};

/// What a call with these lengths has to do at least.
struct Work {
  double flops = 0;
  double bytes = 0;  ///< each tensor once, only what is used of it
};

/// As the accounting of `plan`, but exact for packed, paged and shortened sequences too: index tensors (in
/// host memory, already checked) are read.
Work exact_work(const Plan& plan, const ForwardArguments& args);

}  // namespace onepass::cli
