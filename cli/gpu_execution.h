// A call carried out by GPU 0 on copies of its tensors.
#pragma once

#include "cli/execution.h"
#include "cli/gpu_timer.h"
#include "verify/gpu_call.h"

namespace onepass::cli {

class GpuExecution : public Execution {
 public:
  /// As make_execution. @throws EnvironmentError without a GPU.
  GpuExecution(const char* call, const ForwardArguments& args, const ForwardOptions& options)
      : call_(call, args, options) {}

  const Plan& plan() const override { return call_.plan(); }
  /// Times the second of two runs: the first one loads kernels. Copies are not counted.
  double run() override;

 private:
  verify::GpuCall call_;
  GpuTimer timer_{0};
};

}  // namespace onepass::cli
