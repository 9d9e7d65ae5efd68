// A call whose tensors are in host memory, carried out by an NVIDIA GPU.
#pragma once

#include <optional>
#include <string>

#include "onepass/attention.h"
#include "verify/device_copies.h"

namespace onepass::verify {

/// Arguments: ForwardArguments or BackwardArguments.
template <class Arguments>
class BasicGpuCall {
 public:
  /// Copies every tensor to the GPU and plans there, with bounds of the lengths that are read here: on the
  /// GPU nobody reads them. Checks everything first, index values included. `call` begins messages.
  /// @throws InvalidArgument, NotSupported; EnvironmentError without a GPU.
  BasicGpuCall(const char* call, const Arguments& host, const ForwardOptions& options, int device_idx = 0);

  const Plan& plan() const { return plan_; }
  /// The views in GPU memory, and a workspace of exactly the planned size.
  const Arguments& args() const { return args_; }
  std::span<std::byte> workspace() const { return workspace_.span(); }

  /// Queues one run.
  void run(Stream stream = {}) const { onepass::run(plan_, args_, workspace(), stream); }
  /// Copies the tensors from host memory again.
  void upload() const { copies_.upload(); }
  /// Waits, copies every tensor back, and says what beside them was written; empty when nothing.
  std::optional<std::string> copy_back() const;

 private:
  Arguments args_;
  Plan plan_;
  DeviceCopies copies_;
  GuardedDeviceBuffer workspace_;
};

extern template class BasicGpuCall<ForwardArguments>;
extern template class BasicGpuCall<BackwardArguments>;

using GpuCall = BasicGpuCall<ForwardArguments>;
using GpuGradientCall = BasicGpuCall<BackwardArguments>;

}  // namespace onepass::verify
