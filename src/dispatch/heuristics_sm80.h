// Which sm80 kernel, and how many parts of the keys, as pure functions of (problem, device).
#pragma once

#include <optional>
#include <string>

#include "onepass/plan.h"
#include "problem/attention_problem.h"
#include "store/kernel_spec.h"

namespace onepass {

struct Sm80ForwardConfig {
  KernelSpec forward;  // of family Sm80Forward
  int num_splits = 1;  // parts of the keys, merged by a second kernel
  std::int64_t grid = 0;

  bool operator==(const Sm80ForwardConfig&) const = default;
};

/// Why k and v are not for kernels that take them in q's dtype as they are; empty when they are.
std::optional<std::string> decline_stored_types(const AttentionProblem& problem);

/// Why the family does not take a problem on a device; empty when it does. requested_splits: 0 leaves the
/// choice to the heuristic.
std::optional<std::string> decline_sm80_forward(const AttentionProblem& problem, const DeviceInfo& device,
                                                int requested_splits);

Sm80ForwardConfig choose_sm80_forward(const AttentionProblem& problem, const DeviceInfo& device,
                                      int requested_splits);

/// Widest piece in bytes, up to `widest`, in which 16-bit rows can be read or written: every row starts at a
/// multiple of it.
int row_alignment(const TensorStrides& strides, int widest);

/// Rows of the query buffer may belong to no sequence, so that they have to be filled.
bool has_unowned_rows(const AttentionProblem& problem);

}  // namespace onepass
