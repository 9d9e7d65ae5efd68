// cpu/simd/backward.cpp - attention backward on the CPU's vector units: the outer loop
//
// Problem    every backward problem that validation lets through; memory beside the tensors: a float for each
// query
//            row and head, and per thread a tile's scratch with dQ of tile_m rows in f32
// Work       first delta of every row; then items, handed to threads one by one. With heads enough for the
// threads
//            an item is a (sequence, key head) and makes all its gradients; else it is a block of keys, which
//            makes dK and dV, or a tile of rows, which makes dQ. A bias's gradient is a third pass, by its
//            own rows and keys, and a sink's a fourth
// Order      every sum has one owner, which forms it in a fixed order: the bits depend on nothing but the
// plan
#include <omp.h>

#include <atomic>
#include <cmath>

#include "backends/cpu/backend.h"
#include "backends/cpu/simd/gradients.h"
#include "backends/cpu/simd/kernel_table.h"
#include "plan/make_plan.h"

namespace onepass::cpu {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Numbers the items of a call. Sequences differ in length, so some numbers stand for nothing.
class Items {
 public:
  /// `planned`: as many as there are sequences and key heads, where one item makes all gradients of one.
  Items(const GradientContext& context, std::int64_t tile_m, std::int64_t planned)
      : context_(context),
        problem_(context.forward.problem),
        tile_m_(tile_m),
        joint_(planned == problem_.batch * problem_.num_heads_k),
        blocks_(joint_ ? 0 : ceil_div(problem_.seqlen_k, context.tile_n)),
        tiles_(joint_ ? 1 : ceil_div(problem_.seqlen_q * problem_.group(), tile_m)) {}

  std::int64_t count() const { return problem_.batch * problem_.num_heads_k * (blocks_ + tiles_); }

  /// Blocks of keys first: causal ones grow shorter, and tiles of rows longer, towards the end.
  GradientItem item(std::int64_t idx) const {
    const std::int64_t head = idx / (blocks_ + tiles_), part = idx % (blocks_ + tiles_);
    GradientItem item;
    WorkItem& rows = item.rows;
    rows.head_k = head % problem_.num_heads_k;
    rows.sequence = sequence_at(problem_, context_.args.forward, head / problem_.num_heads_k);
    rows.band = band_of(problem_, rows.sequence);
    rows.row_end = rows.sequence.seqlen_q * problem_.group();
    rows.n_block_max = ceil_div(rows.sequence.seqlen_k, context_.tile_n);
    item.makes_keys = joint_ || part < blocks_;
    item.makes_queries = joint_ || !item.makes_keys;
    if (joint_) return item;
    if (item.makes_keys) {
      rows.n_block_min = part;
      rows.n_block_max = min_index(part + 1, rows.n_block_max);
    } else {
      rows.row_begin = (part - blocks_) * tile_m_;
      rows.row_end = min_index(rows.row_begin + tile_m_, rows.row_end);
      if (rows.row_begin >= rows.row_end) {
        rows.row_begin = rows.row_end;
        return item;
      }
      const TileRange range = tile_range(rows.band, rows.sequence.seqlen_k, rows.row_begin / problem_.group(),
                                         (rows.row_end - 1) / problem_.group() + 1, context_.tile_n);
      rows.n_block_min = range.n_block_min;
      rows.n_block_max = range.n_block_max;
    }
    return item;
  }

 private:
  const GradientContext& context_;
  const AttentionProblem& problem_;
  const std::int64_t tile_m_;
  const bool joint_;
  const std::int64_t blocks_, tiles_;  // of a head
};

/// -sum of exp(sink - lse) delta over the rows of a head, in float64.
void sink_gradient(const GradientContext& context, std::int64_t h) {
  const AttentionProblem& problem = context.forward.problem;
  const ForwardArguments& f = context.args.forward;
  const auto sink = static_cast<double>(per_head_value(f.sinks, 0, h));
  double sum = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_at(problem, f, b);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      const auto lse = static_cast<double>(
          static_cast<const float*>(f.softmax_lse.data)[lse_offset(problem, f.softmax_lse, s, i, h)]);
      if (std::isinf(lse) && lse < 0) continue;
      sum -= std::exp(sink - lse) * static_cast<double>(context.delta[context.forward.query_row(s, i, h)]);
    }
  }
  static_cast<float*>(context.args.dsinks.data)[h * context.args.dsinks.strides[0]] = static_cast<float>(sum);
}

/// Each head of queries with keys of its own.
AttentionProblem by_query_head(const AttentionProblem& problem) {
  AttentionProblem p = problem;
  p.num_heads_k = p.num_heads_q;
  return p;
}

}  // namespace

void run_simd(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace) {
  const AttentionProblem& problem = *plan.problem;
  const GradientProblem& gradient = *problem.gradient;
  fill_unowned_rows(problem, args);

  const KernelTable& kernels = active_kernels();
  auto* delta = reinterpret_cast<float*>(workspace_piece(plan, workspace, kPieceDelta).data());
  const auto context_of = [&](const AttentionProblem& p) {
    return GradientContext{{p, args.forward, kernels, kSubTileM, plan.tile_n, 1, 1, 0, nullptr, nullptr},
                           args,
                           gradient,
                           problem.group(),
                           delta,
                           plan.tile_n};
  };
  const GradientContext context = context_of(problem);
  const AttentionProblem head_problem = by_query_head(problem);
  const GradientContext bias_context = context_of(head_problem);
  const Items items(context, plan.tile_m, plan.steps.at(1).num_work_items);

  std::byte* thread_scratch = workspace_piece(plan, workspace, kPieceThreadScratch).data();
  const std::size_t scratch_bytes = simd_gradient_scratch_bytes(problem, plan.tile_n, plan.tile_m);
  const std::int64_t num_heads = problem.batch * problem.num_heads_q, num_items = items.count();
  const auto& bias = gradient.dbias_shape;
  const std::int64_t bias_tiles = ceil_div(bias[2], kBiasRows), bias_blocks = ceil_div(bias[3], plan.tile_n);
  const std::int64_t num_bias_items = bias[0] * bias[1] * bias_tiles * bias_blocks;
  const std::int64_t num_sinks = gradient.has_dsinks ? problem.num_heads_q : 0;

#pragma omp parallel num_threads(plan.num_threads)
  {
    GradientScratch scratch{};
    scratch.carve(thread_scratch + static_cast<std::size_t>(omp_get_thread_num()) * scratch_bytes, problem,
                  plan.tile_n, plan.tile_m);
#pragma omp for schedule(dynamic)
    for (std::int64_t head = 0; head < num_heads; ++head) {
      const std::int64_t h = head % problem.num_heads_q;
      const Sequence s = sequence_at(problem, args.forward, head / problem.num_heads_q);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        delta[context.forward.query_row(s, i, h)] = kernels.row_delta(context, s, i, h, scratch.tile.line);
      }
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t idx = 0; idx < num_items; ++idx) {
      kernels.gradients(context, items.item(idx), scratch);
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t idx = 0; idx < num_bias_items; ++idx) {
      const std::int64_t n_block = idx % bias_blocks, tile = idx / bias_blocks % bias_tiles;
      const std::int64_t bh = idx / (bias_blocks * bias_tiles), row = tile * kBiasRows;
      kernels.bias_gradients(bias_context,
                             {bh / bias[1], bh % bias[1], row, min_index(row + kBiasRows, bias[2]), n_block},
                             scratch);
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t h = 0; h < num_sinks; ++h) sink_gradient(context, h);
  }
}

}  // namespace onepass::cpu
