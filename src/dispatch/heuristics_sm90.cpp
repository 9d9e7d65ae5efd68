#include "dispatch/heuristics_sm90.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/kernels/sm90/decode_layout.h"
#include "dispatch/heuristics_mixed.h"
#include "dispatch/heuristics_sm80.h"
#include "dispatch/tensor_map_limits.h"

namespace onepass {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr std::int64_t kShortTiles = 4;  // key blocks that are done before a ticket has been drawn and found
constexpr std::int64_t kFewRows =
    64;  // a warpgroup has as many; below, packed heads and splits use a GPU better

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Tile {
  int tile_m, tile_n, stages;
  bool two_query_stages, two_probabilities;
};

/// Measured on an H200 (bench/LOG.md); for other head_dims the largest tile that registers and shared memory
/// hold.
Tile choose_tile(const AttentionProblem& p, bool masked) {
  const std::int64_t wide = std::max(p.head_dim, p.head_dim_v);
  const std::int64_t seqlen_k = p.batch_invariant ? kMaxInt : p.seqlen_k;  // as if some sequence were long
  if (wide <= 64) {
    // With changed scores and pages, three consumers have too few registers.
    const bool few_registers = p.has_score_terms() && p.k_layout == SequenceLayout::Paged;
    if (few_registers || (masked && seqlen_k <= 1024)) return {128, 128, 4, true, false};
    return {192, 128, 3, true, false};
  }
  // Two sets of probabilities make the code longer, which tiles of few key blocks do not gain back.
  if (wide <= 128) return {128, 128, 2, true, seqlen_k > (masked ? 2048 : 512)};
  if (p.head_dim_v <= 128 && wide <= 192) return {128, 128, 2, false, true};
  if (wide <= 192) return {128, 96, 2, false, false};
  return {128, 64, 2, false, false};
}

/// Heads in equal groups, whose K and V fit in two thirds of L2.
std::int64_t choose_head_group(const AttentionProblem& p, const DeviceInfo& device, std::int64_t heads) {
  const std::int64_t l2 = device.l2_bytes > 0 ? device.l2_bytes : std::int64_t{32} << 20;
  const std::int64_t bytes_per_head =
      std::max<std::int64_t>(1, 2 * p.seqlen_k * (p.head_dim + p.head_dim_v) / p.group());
  const std::int64_t fitting = std::max<std::int64_t>(1, l2 * 2 / 3 / bytes_per_head);
  return ceil_div(heads, ceil_div(heads, std::min(fitting, heads)));
}

}  // namespace

std::optional<std::string> decline_sm90_forward(const AttentionProblem& p, const DeviceInfo& device,
                                                int requested_splits) {
  if (auto reason = decline_hopper(p, device)) return reason;
  if (auto reason = decline_stored_types(p)) return reason;
  if (requested_splits > 1) return "does not split the keys";
  if (p.head_dim > 256 || p.head_dim_v > 256 || p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0) {
    return fmt::format("takes head_dim and head_dim_v up to 256 in steps of 8, and they are {} and {}",
                       p.head_dim, p.head_dim_v);
  }
  if (p.batch_invariant) {
    const std::int64_t few = most_few_rows(p, device);
    if (p.seqlen_q <= few) {
      return fmt::format("leaves up to {} query rows to a kernel that cuts keys into parts, and there are {}",
                         few, p.seqlen_q);
    }
  } else if (p.seqlen_q < kFewRows) {
    return fmt::format("is for {} query rows and more, and there are {}", kFewRows, p.seqlen_q);
  }
  if (auto reason = decline_tensor_maps(p)) return reason;
  if (!fits_boxes(p)) {
    return fmt::format("takes pages of a multiple of {} keys, and they have {}", cuda::kFewestBoxKeys,
                       p.page_size);
  }
  if (std::max({p.seqlen_q, p.seqlen_k, p.total_q, p.total_k}) > kMostMappedRows)
    return "counts rows in 30 bits";
  if (p.batch * p.num_heads_q * ceil_div(p.seqlen_q, 128) > kMaxInt / 256) return "counts tiles in 31 bits";
  return std::nullopt;
}

Sm90ForwardConfig choose_sm90_forward(const AttentionProblem& p, const DeviceInfo& device) {
  Sm90ForwardConfig config;
  KernelSpec& spec = config.forward;
  spec.family = KernelFamily::Sm90Forward;
  spec.architecture = 90;
  spec.dtype = p.q_dtype;
  spec.head_dim = static_cast<int>(p.head_dim);
  spec.head_dim_v = static_cast<int>(p.head_dim_v);
  spec.mask_begin = p.window_left >= 0;
  spec.mask_end = spec.mask_begin || p.window_right >= 0 || p.causal != Causal::None;
  spec.ragged = has_unowned_rows(p);
  spec.ticket = spec.mask_end || spec.ragged;  // tiles differ in length
  const Tile tile = choose_tile(p, spec.mask_end);
  spec.tile_m = tile.tile_m;
  spec.tile_n = tile.tile_n;
  spec.num_warps = 4 * (tile.tile_m / 64 + 1);
  spec.stages = tile.stages;
  spec.two_query_stages = tile.two_query_stages;
  spec.paged = p.k_layout == SequenceLayout::Paged;
  spec.score_terms = p.has_score_terms();
  spec.two_probabilities = tile.two_probabilities && !spec.score_terms;

  Sm90TileOrder& order = config.order;
  std::int64_t heads = p.batch * p.num_heads_q;
  order.draw_early = spec.ticket && p.seqlen_k <= kShortTiles * tile.tile_n;
  if (spec.mask_end && heads > 0) {
    order.head_group = choose_head_group(p, device, spec.ragged ? p.num_heads_q : heads);
    if (!spec.ragged) heads = ceil_div(heads, order.head_group) * order.head_group;
  }
  order.num_tiles = ceil_div(p.seqlen_q, tile.tile_m) * heads;
  config.grid = std::min<std::int64_t>(order.num_tiles, device.num_processors);
  return config;
}

}  // namespace onepass
