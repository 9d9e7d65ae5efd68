// Attention on a GPU in three steps that store S and P: the baseline of tests and benchmarks.
#pragma once

#include <cstddef>

#include "onepass/attention.h"
#include "verify/device_copies.h"

namespace onepass::verify {

/// S in f32 and P in the element type, [B, Hq, Sq, Sk] each, in GPU memory, as plain evaluations do. The
/// products are f32 multiply-adds without tensor cores (kernels/baseline/naive.cuh). Writes no LSE.
class NaiveGpuCall {
 public:
  /// For calls like the one that `plan` is for.
  /// @throws NotSupported for anything but dense f16 or bf16 with a mask, EnvironmentError without the
  /// memory.
  NaiveGpuCall(const char* call, const Plan& plan, int device_idx = 0);

  /// What the constructor refuses, without a GPU. @throws NotSupported.
  static void require_support(const char* call, const AttentionProblem& problem);

  /// Queues the three kernels on the default stream; `args` are in the memory of the GPU.
  void run(const ForwardArguments& args) const;
  /// Bytes of S and P.
  std::size_t memory_bytes() const { return scores_.size() + probabilities_.size(); }

 private:
  std::shared_ptr<const AttentionProblem> problem_;
  int device_idx_;
  GuardedDeviceBuffer scores_, probabilities_;
};

}  // namespace onepass::verify
