// Which sm80 backward kernels, as pure functions of (problem, device).
#pragma once

#include <optional>
#include <string>

#include "onepass/plan.h"
#include "problem/attention_problem.h"
#include "store/kernel_spec.h"

namespace onepass {

struct Sm80BackwardConfig {
  KernelSpec keys, queries, bias;
  std::int64_t keys_grid = 0, queries_grid = 0, bias_grid = 0;  // 0: nothing to do

  bool operator==(const Sm80BackwardConfig&) const = default;
};

/// Why the family does not take a backward problem on a device; empty when it does.
std::optional<std::string> decline_sm80_backward(const AttentionProblem& problem, const DeviceInfo& device);

Sm80BackwardConfig choose_sm80_backward(const AttentionProblem& problem, const DeviceInfo& device);

/// dO cannot be read row by row in pieces: its last dimension has another stride than 1.
bool copies_dout(const AttentionProblem& problem);

}  // namespace onepass
