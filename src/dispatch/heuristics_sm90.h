// Which sm90 kernel, as pure functions of (problem, device).
#pragma once

#include <optional>
#include <string>

#include "onepass/plan.h"
#include "problem/attention_problem.h"
#include "store/kernel_spec.h"

namespace onepass {

/// Which tiles thread blocks take, and in which order.
struct Sm90TileOrder {
  std::int64_t num_tiles = 0;   // the last group of heads counted as if it were full
  std::int64_t head_group = 1;  // heads whose tiles follow each other (masked kernels): of all sequences,
                                // or of one where they are ragged
  bool draw_early = false;      // tickets are drawn a tile ahead

  bool operator==(const Sm90TileOrder&) const = default;
};

struct Sm90ForwardConfig {
  KernelSpec forward;  // of family Sm90Forward
  Sm90TileOrder order;
  std::int64_t grid = 0;

  bool operator==(const Sm90ForwardConfig&) const = default;
};

/// Why the family does not take a problem on a device; empty when it does.
std::optional<std::string> decline_sm90_forward(const AttentionProblem& problem, const DeviceInfo& device,
                                                int requested_splits);

Sm90ForwardConfig choose_sm90_forward(const AttentionProblem& problem, const DeviceInfo& device);

}  // namespace onepass
