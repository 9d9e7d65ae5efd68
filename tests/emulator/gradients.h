// The tensors of a case's backward call, and its gradients by the float64 reference.
#pragma once

#include <string>
#include <vector>

#include "onepass/attention.h"
#include "verify/case_tensors.h"
#include "verify/host_tensor.h"

namespace onepass::emulator {

class GradientTensors {
 public:
  explicit GradientTensors(const Case& c);

  void poison_gradients();
  /// Of each gradient whose relative Frobenius error is past its dtype's bound (spec section 5), or that has
  /// a NaN or memory beside it written; empty when all is well.
  std::string differences() const;
  std::vector<char> gradient_bytes() const;
  bool guards_intact() const;

  BackwardArguments args;
  ForwardOptions options;

 private:
  verify::CaseTensors forward_;
  verify::HostTensor dout_;
  std::vector<verify::HostTensor> got_, want_;  // dq, dk, dv
};

/// What onepass plans for these tensors, were they in the memory of that GPU.
Plan plan_on(const DeviceInfo& device, const GradientTensors& tensors);

}  // namespace onepass::emulator
