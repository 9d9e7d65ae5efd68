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
  std::int64_t descending_group = 1;  // of those: how many take turns
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

/// Rows of query heads, padded, of which lse, delta and dQ's sums are kept.
std::int64_t gradient_rows(const AttentionProblem& problem);

/// Floats that dQ's sums take for each row of a query head.
std::int64_t sm90_dq_sum_columns(const KernelSpec& backward);

/// How many ranges of key heads the call is divided into. They run one after another in the same workspace,
/// which so stays near 0.2 GB on an H200, however long the sequences are, unless a key head takes more. Each
/// costs what the end of a launch costs, so calls that need no more than that anyway stay whole.
std::int64_t choose_sm90_backward_parts(const AttentionProblem& problem, const DeviceInfo& device);

}  // namespace onepass
