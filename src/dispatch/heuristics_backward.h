// Tiles and items of the SIMD backward on a CPU, as pure functions of (problem, device).
#pragma once

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

struct CpuBackwardConfig {
  /// One item makes dQ, dK and dV of a key head with five products; its rows are tile_m. Otherwise blocks of
  /// keys and tiles of tile_m rows are items of their own, with seven products between them.
  bool joint = false;
  std::int64_t tile_m = 0, tile_n = 0;  // packed query rows, keys
  std::int64_t num_items = 0;           // at most: sequences may be shorter
  int num_threads = 1;

  bool operator==(const CpuBackwardConfig&) const = default;
};

CpuBackwardConfig choose_cpu_backward(const AttentionProblem& problem, const DeviceInfo& device,
                                      int requested_threads);

}  // namespace onepass
