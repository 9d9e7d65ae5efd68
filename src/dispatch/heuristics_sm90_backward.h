// Which sm90 backward kernels, as pure functions of (problem, device).
#pragma once

#include <optional>
#include <string>

#include "onepass/plan.h"
#include "problem/attention_problem.h"
#include "store/kernel_spec.h"

namespace onepass {

/// In which order tiles (a block of keys of a head each) are drawn and add to dQ: sm90/backward_tiles.cuh.
struct Sm90BackwardOrder {
  std::int64_t num_tiles = 0;
  std::int64_t descending_heads = 0;  // of keys, of all sequences: the first ones
  std::int64_t ascending_group = 1;   // of the others: how many take turns

  bool operator==(const Sm90BackwardOrder&) const = default;
};

struct Sm90BackwardConfig {
  KernelSpec prepare, backward, finish;
  Sm90BackwardOrder order;
  std::int64_t rows_grid = 0, grid = 0;  // of prepare and finish, and of backward

  bool operator==(const Sm90BackwardConfig&) const = default;
};

/// Why the family does not take a problem on a device; empty when it does.
std::optional<std::string> decline_sm90_backward(const AttentionProblem& problem, const DeviceInfo& device);

Sm90BackwardConfig choose_sm90_backward(const AttentionProblem& problem, const DeviceInfo& device);

}  // namespace onepass
