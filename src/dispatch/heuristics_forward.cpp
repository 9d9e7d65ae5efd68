#include "dispatch/heuristics_forward.h"

#include <algorithm>
#include <initializer_list>

#include "backends/cuda/kernels/common/key_parts.h"
#include "dispatch/key_parts.h"

namespace onepass {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Large query tiles gather K and V fewer times; small ones leave work for every thread. Four tiles per thread
// keep the last ones from waiting on each other (causal tiles differ in length by their position).
// Xeon (Sapphire Rapids, 48 KiB L1, 2 MiB L2), 2026-11, one core, f32, time over that of 512 rows:
//   (heads, seqlen, head_dim)   128 rows   256 rows   1024 rows
//   (2, 1024, 64)               1.08       1.03       1.00
//   (2, 1024, 128)              1.12       1.04       0.98
//   (1, 4096, 64)               1.12       1.03       1.01
//   (1, 4096, 128)              1.11       1.02       0.98
// Q^T and out^T of a tile stay in L2: 1 MiB at 512 rows and head_dim + head_dim_v = 512.
std::int64_t choose_tile_m(const AttentionProblem& problem, int num_threads) {
  constexpr std::int64_t kRowsOfMicroKernel = 8;
  constexpr std::int64_t kTilesPerThread = 4;
  constexpr std::int64_t kMostElements = std::int64_t{512} * 512;
  const std::int64_t rows = problem.seqlen_q * problem.group();
  if (rows <= 64) return std::max(kRowsOfMicroKernel, round_up(rows, kRowsOfMicroKernel));
  for (const std::int64_t tile_m : {512, 256, 128}) {
    if (tile_m * (problem.head_dim + problem.head_dim_v) > kMostElements) continue;
    if (tile_m <= round_up(rows, 64) && count_query_tiles(problem, tile_m) >= kTilesPerThread * num_threads) {
      return tile_m;
    }
  }
  return 64;
}

constexpr std::int64_t kTilesPerThread = 4;  // with so many, imbalance is small
constexpr std::int64_t kKeysPerSplit = 512;  // below, writing and merging partial results costs more

// The smallest number of splits that keeps the threads busy: among the candidates, the first whose share
// of busy thread time is within 5% of the best (after num_splits_heuristic of
// Dao-AILab/flash-attention, hopper/heuristics.h).
int choose_splits(std::int64_t num_tiles, std::int64_t seqlen_k, int num_threads) {
  if (num_threads == 1 || num_tiles == 0 || num_tiles >= kTilesPerThread * num_threads) return 1;
  const std::int64_t most = std::min<std::int64_t>(seqlen_k / kKeysPerSplit, kTilesPerThread * num_threads);
  const auto busy_share = [&](std::int64_t splits) {
    const std::int64_t items = num_tiles * splits;
    return static_cast<double>(items) /
           static_cast<double>(ceil_div(items, num_threads) * std::int64_t{num_threads});
  };
  double best = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) best = std::max(best, busy_share(splits));
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    if (busy_share(splits) >= 0.95 * best) return static_cast<int>(splits);
  }
  return 1;
}

std::int64_t wanted_items(int num_threads) { return num_threads == 1 ? 1 : kTilesPerThread * num_threads; }

// Key heads of one item of a decoding call: as many as keep their rows in cache, while every thread has some
// items. A single head's rows are apart by all heads: on a Zen 3 (two threads, 8 heads of 128 bf16 elements,
// 2026-11), adding up 256 bytes at a distance of 2 KiB gets half the bandwidth of adding up all in order.
std::int64_t choose_item_heads(const AttentionProblem& problem, int num_threads, std::int64_t most_splits) {
  constexpr std::int64_t kMostBytes = std::int64_t{128}
                                      << 10;  // of Q, O and the sums of a tile: they stay in L2
  const std::int64_t rows = std::max<std::int64_t>(1, problem.seqlen_q * problem.group());
  if (rows > kMaxDecodeRows) return 1;
  const std::int64_t row_bytes = 4 * (problem.head_dim + 2 * problem.head_dim_v);
  const std::int64_t most_rows = std::min(kMostItemRows, kMostBytes / row_bytes);
  std::int64_t heads =
      std::clamp<std::int64_t>(most_rows / rows, 1, std::max<std::int64_t>(1, problem.num_heads_k));
  const auto tiles = [&] { return problem.batch * ceil_div(problem.num_heads_k, heads); };
  while (heads > 1 && tiles() * most_splits < wanted_items(num_threads)) heads = ceil_div(heads, 2);
  return heads;
}

}  // namespace

// The scores of 64 query rows (tile_n x 256 bytes) take up to two thirds of L1, beside the rows of K that
// meet them. Measured as above, 64, 96, 128, 192 and 256 keys are within 5% of each other, 96 and 128 best;
// wide heads take 64 keys, so that their K and V tiles (tile_n x 4 (head_dim + head_dim_v) bytes) leave L2 to
// Q^T and out^T.
std::int64_t choose_cpu_tile_n(const AttentionProblem& problem, const DeviceInfo& device) {
  constexpr std::int64_t kScoreBytesPerKey = std::int64_t{64} * 4;
  constexpr std::int64_t kWideHead = 256;
  if (std::max(problem.head_dim, problem.head_dim_v) > kWideHead) return 64;
  const std::int64_t fitting = device.l1_bytes_per_processor * 2 / 3 / kScoreBytesPerKey;
  return std::clamp<std::int64_t>(fitting / 64 * 64, 64, kMostCpuTileN);
}

std::int64_t count_query_tiles(const AttentionProblem& problem, std::int64_t tile_m) {
  const std::int64_t group = problem.group();
  const std::int64_t longest = std::min(problem.seqlen_q, problem.total_q);
  const std::int64_t per_sequence = ceil_div(longest * group, tile_m);
  if (problem.q_layout != SequenceLayout::Packed) return problem.num_heads_k * problem.batch * per_sequence;
  if (problem.batch == 0) return 0;
  // Each sequence rounds up by less than one tile.
  const std::int64_t by_total = ceil_div(problem.total_q * group, tile_m) + problem.batch;
  const bool by_length_is_less = per_sequence <= by_total / problem.batch;
  return problem.num_heads_k * (by_length_is_less ? problem.batch * per_sequence : by_total);
}

std::int64_t count_cpu_items(const AttentionProblem& problem, const CpuForwardConfig& config) {
  const std::int64_t tiles = count_query_tiles(problem, config.tile_m);
  if (config.item_heads == 1) return tiles * config.num_splits;
  return tiles / problem.num_heads_k * ceil_div(problem.num_heads_k, config.item_heads) * config.num_splits;
}

CpuForwardConfig choose_cpu_forward(const AttentionProblem& problem, const DeviceInfo& device,
                                    int requested_threads, int requested_splits) {
  CpuForwardConfig config;
  config.num_threads = std::max(1, requested_threads > 0 ? requested_threads : device.num_processors);
  config.tile_m = choose_tile_m(problem, config.num_threads);
  config.tile_n = choose_cpu_tile_n(problem, device);

  const std::int64_t num_key_blocks = std::max<std::int64_t>(1, ceil_div(problem.seqlen_k, config.tile_n));
  if (problem.batch_invariant) {
    const bool none_has_few = problem.q_layout == SequenceLayout::Dense && !problem.has_seqused_q &&
                              problem.seqlen_q > most_rows_of_parts(problem);
    config.num_splits = none_has_few ? 1 : static_cast<int>(num_key_parts(problem.seqlen_k));
  } else if (requested_splits > 0) {
    config.num_splits = static_cast<int>(std::min<std::int64_t>(requested_splits, num_key_blocks));
  } else {
    const std::int64_t most = std::max<std::int64_t>(1, problem.seqlen_k / kKeysPerSplit);
    config.item_heads = choose_item_heads(problem, config.num_threads, most);
    const std::int64_t num_tiles = count_cpu_items(problem, config);
    config.num_splits = config.item_heads == 1 || num_tiles == 0
                            ? choose_splits(num_tiles, problem.seqlen_k, config.num_threads)
                            : static_cast<int>(ceil_div(wanted_items(config.num_threads), num_tiles));
  }
  if (problem.batch_invariant || requested_splits > 0) {
    config.item_heads = choose_item_heads(problem, config.num_threads, config.num_splits);
  }

  const std::int64_t items = std::max<std::int64_t>(1, count_cpu_items(problem, config));
  config.num_threads = static_cast<int>(std::min<std::int64_t>(config.num_threads, items));
  return config;
}

}  // namespace onepass
