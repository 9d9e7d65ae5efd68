// The tensors of a backward case: those of its forward call with O and LSE computed, dO, dLSE and the
// gradients.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "onepass/attention.h"
#include "problem/attention_problem.h"
#include "problem/case_text.h"
#include "verify/case_tensors.h"

namespace onepass::verify {

/// O and LSE are those of the float64 backend, rounded; dout and dlse are random. Gradients lie in memory in
/// the order of the case, where that is one for outputs, and are poison. With poison, rows of dout and dlse
/// that belong to no sequence are NaN.
struct GradientTensors {
  CaseTensors forward;
  BackwardArguments args;
  ForwardOptions options;

  void poison_outputs();
  /// What a run should not have touched and did; empty when all is well.
  std::optional<std::string> damage() const;

  std::vector<CaseTensors::Buffer> buffers;  // of what the forward call does not have
  std::vector<std::size_t> forward_hashes;
};

/// c.backward holds. @throws EnvironmentError when the machine has less memory than the case needs.
GradientTensors make_gradient_tensors(const Case& c);

/// The same views with null data, and options that carry max_seqlen: enough for plan().
struct GradientShapes {
  BackwardArguments args;
  ForwardOptions options;
};
GradientShapes gradient_shapes(const Case& c);

/// What such a case, or one of a forward call, is to the planner. @throws what validate_problem throws.
AttentionProblem problem_of_case(const char* call, const Case& c, const ForwardOptions& options);

/// The gradients of a call with their names; absent views among them.
std::array<std::pair<const char*, const TensorView*>, 5> gradients_of(const BackwardArguments& args);

}  // namespace onepass::verify
