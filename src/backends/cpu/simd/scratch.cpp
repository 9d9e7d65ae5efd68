#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "backends/cpu/backend.h"
#include "backends/cpu/simd/gradients.h"
#include "backends/cpu/simd/kernels.h"

namespace onepass::cpu {
namespace {

constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b * b; }

/// Hands out 64-byte aligned pieces; counts only when `memory` is null.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <class T>
  void piece(T*& pointer, std::int64_t count) {
    pointer = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += static_cast<std::size_t>(round_up(count * static_cast<std::int64_t>(sizeof(T)), 64));
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

}  // namespace

std::size_t Scratch::carve(std::byte* memory, const AttentionProblem& problem, std::int64_t tile_m,
                           std::int64_t tile_n) {
  const std::int64_t sub_tiles = round_up(tile_m, kSubTileM) / kSubTileM;
  const std::int64_t dim = round_up(problem.head_dim, 16);
  const std::int64_t dim_v = round_up(problem.head_dim_v, 16);
  // One more cache line than the row: rows at a power-of-two distance would share the sets of L1.
  k_stride = dim + 16;
  v_stride = dim_v + 16;
  row_stride = (dim > dim_v ? dim : dim_v) + 16;
  tile_n_padded = round_up(tile_n, 16);

  Carver carver(memory);
  // Decode takes up to two vectors of a row at a time.
  carver.piece(q, sub_tiles * round_up(dim, 32) * kSubTileM);
  carver.piece(out, sub_tiles * round_up(dim_v, 32) * kSubTileM);
  carver.piece(k, tile_n_padded * k_stride);
  carver.piece(v, tile_n_padded * v_stride);
  carver.piece(scores, std::max(tile_n_padded, kMostCpuTileN) * kSubTileM);
  bias = nullptr;
  if (problem.has_bias) carver.piece(bias, 2 * tile_n_padded * kSubTileM);
  carver.piece(rows, kSubTileM * row_stride);
  carver.piece(line, 2 * row_stride);
  carver.piece(row_max, sub_tiles * kSubTileM);
  carver.piece(row_sum, sub_tiles * kSubTileM);
  carver.piece(rescale, kSubTileM);
  carver.piece(slope, kSubTileM);
  carver.piece(position, kSubTileM);
  carver.piece(visible_begin, kSubTileM);
  carver.piece(visible_end, kSubTileM);
  carver.piece(k_offsets, 2 * tile_n);
  carver.piece(v_offsets, 2 * tile_n);
  carver.piece(prefetch, 2 * (tile_m + tile_n) + kSubTileM);
  return carver.used();
}

std::int64_t blocks_together(const AttentionProblem& problem, std::int64_t tile_n) {
  constexpr std::int64_t kMostBytes = std::int64_t{512} << 10;  // fits L2 with the tile of rows beside it
  const std::int64_t block_bytes = tile_n * 2 * (problem.head_dim + problem.head_dim_v) * 4;
  const std::int64_t blocks = (problem.seqlen_k + tile_n - 1) / tile_n;
  return std::clamp<std::int64_t>(kMostBytes / block_bytes, 1, std::max<std::int64_t>(1, blocks));
}

std::size_t GradientScratch::carve(std::byte* memory, const AttentionProblem& problem, std::int64_t tile_n,
                                   std::int64_t num_rows) {
  const std::int64_t panels = round_up(problem.head_dim, kSubTileM) / kSubTileM;
  const std::int64_t panels_v = round_up(problem.head_dim_v, kSubTileM) / kSubTileM;
  const std::int64_t dim = round_up(problem.head_dim, 16);
  const std::size_t of_tile =
      tile.carve(memory, problem, kSubTileM, tile_n * blocks_together(problem, tile_n));
  const std::int64_t keys = round_up(tile_n, 16), keys_held = tile.tile_n_padded;
  Carver carver(memory == nullptr ? nullptr : memory + of_tile);
  carver.piece(dp, keys * kSubTileM);
  slopes = bias_sum = nullptr;
  if (problem.softcap > 0) carver.piece(slopes, keys * kSubTileM);
  carver.piece(q_panels, panels * kSubTileM * kSubTileM);
  carver.piece(dout_panels, panels_v * kSubTileM * kSubTileM);
  carver.piece(dk_panels, panels * keys_held * kSubTileM);
  carver.piece(dv_panels, panels_v * keys_held * kSubTileM);
  carver.piece(dq, round_up(num_rows, kSubTileM) * dim);
  carver.piece(lse_log2, kSubTileM);
  carver.piece(delta, kSubTileM);
  if (problem.gradient && problem.gradient->has_dbias) carver.piece(bias_sum, keys * kSubTileM);
  return of_tile + carver.used();
}

std::size_t simd_gradient_scratch_bytes(const AttentionProblem& problem, std::int64_t tile_n,
                                        std::int64_t num_rows) {
  return GradientScratch{}.carve(nullptr, problem, tile_n, num_rows);
}

std::size_t simd_scratch_bytes(const AttentionProblem& problem, std::int64_t tile_m, std::int64_t tile_n) {
  return Scratch{}.carve(nullptr, problem, tile_m, tile_n);
}

ScoreRule score_rule(const ForwardContext& context, const WorkItem& item) {
  const AttentionProblem& problem = context.problem;
  double scale = problem.softmax_scale;
  if (problem.has_k_descale && !problem.k_descale_per_page) {
    scale *=
        static_cast<double>(per_head_value(context.args.k_descale, item.sequence.batch_idx, item.head_k));
  }
  const double direct_scale = scale * std::numbers::log2e;
  const bool monotonic = direct_scale >= static_cast<double>(std::numeric_limits<float>::min()) &&
                         direct_scale <= static_cast<double>(std::numeric_limits<float>::max());
  ScoreRule rule{};
  rule.direct = monotonic && problem.softcap <= 0 && !problem.has_alibi && !problem.has_bias;
  rule.scale = static_cast<float>(scale);
  rule.exponent_scale = static_cast<float>(rule.direct ? direct_scale : std::numbers::log2e);
  rule.lse_scale = rule.direct ? scale : 1.0;
  return rule;
}

}  // namespace onepass::cpu
