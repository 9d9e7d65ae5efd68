// Choices for one forward call as pure functions of plain values: no tensor, no global, no environment.
#pragma once

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

/// Up to so many packed rows of a key head, an item of the CPU's takes the row-wise path (simd/decode.cpp):
/// it reads K and V where they lie, while the column-wise path (prefill.cpp) would fill only a part of its
/// lanes.
inline constexpr std::int64_t kMaxDecodeRows = 16;
/// Rows of all key heads of such an item.
inline constexpr std::int64_t kMostItemRows = 64;

/// How the CPU SIMD backend cuts a problem. The g = Hq / Hk query heads that share a key head are packed into
/// rows: row r of (sequence, key head) is query r / g, head r % g of the group, so K and V are read once.
struct CpuForwardConfig {
  std::int64_t tile_m = 64;     // packed query rows of one work item
  std::int64_t tile_n = 128;    // keys of one step
  std::int64_t item_heads = 1;  // key heads of one work item; more than one only where all sequences decode
  int num_splits = 1;           // parts of the keys, merged afterwards; the most that a sequence has
  int num_threads = 1;

  bool operator==(const CpuForwardConfig&) const = default;
};

/// Query tiles of all sequences and key heads: exact for dense queries, an upper bound for packed ones.
std::int64_t count_query_tiles(const AttentionProblem& problem, std::int64_t tile_m);

/// Work items of a call on the CPU: tiles, by the key heads that go together, by splits.
std::int64_t count_cpu_items(const AttentionProblem& problem, const CpuForwardConfig& config);

/// Keys of a block of the SIMD backend, at most kMostCpuTileN.
inline constexpr std::int64_t kMostCpuTileN = 128;
std::int64_t choose_cpu_tile_n(const AttentionProblem& problem, const DeviceInfo& device);

/// requested_threads and requested_splits: 0 leaves the choice to the heuristic. Threads are never more than
/// there are work items, splits never more than there are key blocks.
CpuForwardConfig choose_cpu_forward(const AttentionProblem& problem, const DeviceInfo& device,
                                    int requested_threads, int requested_splits);

}  // namespace onepass
