// Choices for one forward call as pure functions of plain values: no tensor, no global, no environment.
#pragma once

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

/// How the CPU SIMD backend cuts a problem. The g = Hq / Hk query heads that share a key head are packed into
/// rows: row r of (sequence, key head) is query r / g, head r % g of the group, so K and V are read once.
struct CpuForwardConfig {
  std::int64_t tile_m = 64;   // packed query rows of one work item
  std::int64_t tile_n = 128;  // keys of one step
  int num_splits = 1;         // parts of the keys, merged afterwards; the most that a sequence has
  int num_threads = 1;

  bool operator==(const CpuForwardConfig&) const = default;
};

/// Query tiles of all sequences and key heads: exact for dense queries, an upper bound for packed ones.
std::int64_t count_query_tiles(const AttentionProblem& problem, std::int64_t tile_m);

/// Keys of a block of the SIMD backend.
std::int64_t choose_cpu_tile_n(const AttentionProblem& problem, const DeviceInfo& device);

/// requested_threads and requested_splits: 0 leaves the choice to the heuristic. Threads are never more than
/// there are work items, splits never more than there are key blocks.
CpuForwardConfig choose_cpu_forward(const AttentionProblem& problem, const DeviceInfo& device,
                                    int requested_threads, int requested_splits);

}  // namespace onepass
