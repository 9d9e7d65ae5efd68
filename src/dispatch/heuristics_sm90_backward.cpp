#include "dispatch/heuristics_sm90_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/kernels/common/gradient_rows.h"
#include "backends/cuda/kernels/sm90/backward_layout.h"
#include "dispatch/heuristics_sm80.h"
#include "dispatch/tensor_map_limits.h"

namespace onepass {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMostSumsPerL2 = 3;  // dQ's sums, in sizes of the L2 cache

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Queries of a step. S and dP of 128 fit into the registers that a narrow head leaves.
int choose_tile_m(const AttentionProblem& p) { return std::max(p.head_dim, p.head_dim_v) <= 64 ? 128 : 64; }

/// Keys of a tile: two warpgroups hold dK and dV of 64 each, or, past 128 columns, of the same 64.
int choose_tile_n(const AttentionProblem& p) {
  return std::max(p.head_dim, p.head_dim_v) <= 128 ? 128 : cuda::kBackwardWideKeys;
}

/// What the tiles of a key head read and add to, again and again: Q, dO and dQ's sums of its query heads.
std::int64_t bytes_per_head(const AttentionProblem& p) {
  const std::int64_t row = 2 * (p.head_dim + p.head_dim_v) + 4 * p.head_dim;
  return std::max<std::int64_t>(1, p.seqlen_q * (p.num_heads_q / p.num_heads_k) * row);
}

/// About as many heads at a time, in groups as equal as may be: a last group of few would be a convoy.
std::int64_t even_group(std::int64_t heads, std::int64_t at_a_time) {
  const std::int64_t groups = std::max<std::int64_t>(1, (heads + at_a_time / 2) / at_a_time);
  return std::max<std::int64_t>(1, ceil_div(heads, groups));
}

/// A tile that adds to dQ waits for its neighbour of the same head. With several heads by turns the two start
/// at different times, so that one's delays are not the other's; but the heads' data should stay in the L2
/// cache, at least where tiles of different lengths spread over them. Factors measured (bench/LOG.md).
Sm90BackwardOrder choose_order(const AttentionProblem& p, const DeviceInfo& device) {
  const std::int64_t heads = p.batch * p.num_heads_k, n_blocks = ceil_div(p.seqlen_k, choose_tile_n(p));
  Sm90BackwardOrder order;
  order.num_tiles = heads * n_blocks;
  if (order.num_tiles == 0) return order;
  const std::int64_t cached_heads = device.l2_bytes / 2 / bytes_per_head(p);
  const std::int64_t resident_heads = (device.num_processors + n_blocks / 2) / n_blocks;  // by their tiles
  if (p.unmasked()) {
    order.ascending_group =
        even_group(heads, std::max(resident_heads, std::clamp<std::int64_t>(cached_heads / 2, 4, 16)));
    return order;
  }
  // The last heads fill the end of the launch with short tiles. Which ones these are depends on the batch,
  // the multiprocessors and the L2 cache.
  order.ascending_group =
      std::min(heads, std::max(std::clamp<std::int64_t>(cached_heads, 1, 8), resident_heads));
  order.descending_heads = p.batch_invariant ? heads : heads - order.ascending_group;
  order.descending_group = even_group(order.descending_heads, std::clamp<std::int64_t>(cached_heads, 1, 4));
  return order;
}

}  // namespace

std::optional<std::string> decline_sm90_backward(const AttentionProblem& p, const DeviceInfo& device) {
  if (auto reason = decline_hopper(p, device)) return reason;
  if (auto reason = decline_stored_types(p)) return reason;
  if (p.has_score_terms()) return "takes neither softcap, ALiBi, bias nor a scale that is not positive";
  const std::int64_t wider = std::max(p.head_dim, p.head_dim_v),
                     narrower = std::min(p.head_dim, p.head_dim_v);
  if (p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0 || wider > 256 ||
      (wider > 128 ? narrower <= 64 : p.head_dim <= 64 && p.head_dim_v > 64)) {
    return fmt::format(
        "takes head_dim and head_dim_v up to 256 in steps of 8, both past 64 where one is past 128, the "
        "former where the latter is, and they are {} and {}",
        p.head_dim, p.head_dim_v);
  }
  if (auto reason = decline_tensor_maps(p)) return reason;
  if (auto reason = decline_gradient_rows(p)) return reason;
  if (std::max({p.seqlen_q, p.seqlen_k, p.total_q, p.total_k}) > kMostMappedRows)
    return "counts rows in 30 bits";
  const std::int64_t blocks_q = p.batch * p.num_heads_q * ceil_div(p.seqlen_q, cuda::kGradientRowPad);
  if (std::max(blocks_q, p.batch * p.num_heads_k * ceil_div(p.seqlen_k, choose_tile_n(p))) > kMaxInt / 256)
    return "counts tiles in 31 bits";
  return std::nullopt;
}

Sm90BackwardConfig choose_sm90_backward(const AttentionProblem& p, const DeviceInfo& device) {
  KernelSpec spec;
  spec.family = KernelFamily::Sm90Backward;
  spec.architecture = 90;
  spec.dtype = p.q_dtype;
  spec.head_dim = static_cast<int>(p.head_dim);
  spec.head_dim_v = static_cast<int>(p.head_dim_v);
  spec.tile_m = choose_tile_m(p);
  spec.tile_n = choose_tile_n(p);
  spec.num_warps = 12;
  spec.mask_begin = p.window_left >= 0;
  spec.mask_end = !p.unmasked();
  Sm90BackwardConfig config{
      .prepare = spec, .backward = spec, .finish = spec, .order = choose_order(p, device)};
  config.prepare.family = KernelFamily::Sm90BackwardPrepare;
  config.prepare.mask_begin = config.prepare.mask_end = false;  // one for every mask
  config.finish.family = KernelFamily::Sm90BackwardFinish;
  config.prepare.num_warps = 4;  // a thread has several rows, so many bytes are asked for at once
  config.finish.num_warps = 8;
  config.rows_grid = p.batch * p.num_heads_q * ceil_div(p.seqlen_q, spec.tile_m);
  config.grid = std::min<std::int64_t>(config.order.num_tiles, device.num_processors);
  return config;
}

std::int64_t gradient_rows(const AttentionProblem& p) {
  const bool packed = p.q_layout == SequenceLayout::Packed;
  return cuda::gradient_rows_per_head(packed, p.batch, p.seqlen_q, p.total_q) * p.num_heads_q *
         (packed ? 1 : p.batch);
}

std::int64_t sm90_dq_sum_columns(const KernelSpec& backward) {
  // What warpgroups share by columns is whole blocks of these.
  return backward.tile_m == 128 ? backward.head_dim
                                : cuda::backward_columns(backward.head_dim, backward.tile_n);
}

std::int64_t choose_sm90_backward_parts(const AttentionProblem& p, const DeviceInfo& device) {
  const std::int64_t rows = gradient_rows(p);
  const auto row_bytes = static_cast<std::int64_t>(sizeof(float)) *
                         sm90_dq_sum_columns(choose_sm90_backward(p, device).backward);
  const std::int64_t most = kMostSumsPerL2 * device.l2_bytes;
  if (most == 0 || rows <= most / row_bytes) return 1;
  const std::int64_t heads_k =
      std::max<std::int64_t>(1, most / row_bytes * p.num_heads_k / rows);  // of a part
  return ceil_div(p.num_heads_k, heads_k);
}

}  // namespace onepass
