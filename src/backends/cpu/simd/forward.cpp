// cpu/simd/forward.cpp - attention forward on the CPU's vector units: the outer loop
//
// Problem    every problem that validation lets through; O(threads x tile) memory beside the tensors
// Work       items (sequence, key head, block of tile_m packed rows, split), handed to threads one by one; a
//            decoding call's have several key heads (dispatch/heuristics_forward.cpp).
//            The g = Hq / Hk query heads of a key head are packed into rows (row r: query r / g, head r %
//            g), so K and V are read once for all of them
// Paths      few rows: decode.cpp (lanes are head dimensions, bound by memory); many: prefill.cpp (lanes
//            are queries, bound by FMA). Chosen per item, so a ragged batch mixes both
// Splits     num_splits > 1 cuts the key blocks that an item visits into parts; their normalised results
//            and LSE go to the workspace and are merged row by row once all items are done. In a
//            batch-invariant call each sequence has parts of its own (dispatch/key_parts.h), and a path
// Order      causal items differ in length. With few heads per thread all long items come first; else items
//            of one head follow each other, longest first, so that its K and V stay in cache
#include <omp.h>

#include <atomic>

#include "backends/cpu/backend.h"
#include "backends/cpu/simd/kernel_table.h"
#include "dispatch/split_kv.h"
#include "plan/make_plan.h"

namespace onepass::cpu {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Numbers the items of a call and hands them out in that order. Sequences differ in length, so some
/// numbers stand for nothing.
class ItemQueue final : public WorkQueue {
 public:
  ItemQueue(const ForwardContext& context, int num_threads)
      : context_(context),
        blocks_(ceil_div(context.problem.seqlen_q * context.problem.group(), context.tile_m)),
        heads_of_sequence_(ceil_div(context.problem.num_heads_k, context.item_heads)),
        heads_(context.problem.batch * heads_of_sequence_),
        by_head_(heads_ >= kHeadsPerThread * num_threads) {}

  WorkItem take() override {
    const std::int64_t count = heads_ * blocks_ * context_.num_splits;
    while (true) {
      const std::int64_t idx = next_.fetch_add(1, std::memory_order_relaxed);
      if (idx >= count) return {};
      if (const WorkItem found = item(idx); found.num_rows() > 0) return found;
    }
  }

 private:
  static constexpr std::int64_t kHeadsPerThread = 4;

  /// Item number `idx`; without rows when there is none.
  WorkItem item(std::int64_t idx) const {
    const AttentionProblem& problem = context_.problem;
    const std::int64_t splits = context_.num_splits;
    const std::int64_t head = by_head_ ? idx / (blocks_ * splits) : idx / splits % heads_;
    const std::int64_t m_block = blocks_ - 1 - (by_head_ ? idx / splits % blocks_ : idx / (splits * heads_));

    WorkItem item{};
    item.split_idx = idx % splits;
    item.head_k = head % heads_of_sequence_ * context_.item_heads;
    item.num_heads_k = min_index(context_.item_heads, problem.num_heads_k - item.head_k);
    item.sequence = sequence_at(problem, context_.args, head / heads_of_sequence_);
    item.num_splits = context_.splits_of(item.sequence);
    if (item.split_idx >= item.num_splits) return item;
    item.row_begin = m_block * context_.tile_m;
    item.row_end = max_index(item.row_begin, min_index(item.row_begin + context_.tile_m,
                                                       item.sequence.seqlen_q * problem.group()));
    if (item.num_rows() == 0) return item;
    item.band = band_of(problem, item.sequence);
    const TileRange range = tile_range(item.band, item.sequence.seqlen_k, item.row_begin / problem.group(),
                                       (item.row_end - 1) / problem.group() + 1, context_.tile_n);
    const KeyRange part =
        problem.batch_invariant && item.num_splits > 1
            ? part_blocks(range.n_block_min, range.n_block_max, item.split_idx, context_.tile_n)
            : split_blocks(range.n_block_min, range.n_block_max, item.split_idx, item.num_splits);
    item.n_block_min = part.begin;
    item.n_block_max = part.end;
    return item;
  }

  const ForwardContext& context_;
  const std::int64_t blocks_, heads_of_sequence_, heads_;  // heads: as many together as an item has
  const bool by_head_;
  std::atomic<std::int64_t> next_{0};
};

void merge_sequence(const ForwardContext& context, std::int64_t head) {
  const Sequence s = sequence_at(context.problem, context.args, head / context.problem.num_heads_q);
  if (context.splits_of(s) == 1) return;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    context.kernels.merge_row(context, s, i, head % context.problem.num_heads_q);
  }
}

}  // namespace

void run_simd(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace) {
  const AttentionProblem& problem = *plan.problem;
  fill_unowned_rows(problem, args);

  const auto floats = [&](const char* name) {
    return reinterpret_cast<float*>(workspace_piece(plan, workspace, name).data());
  };
  const ForwardContext context{problem,
                               args,
                               active_kernels(),
                               plan.tile_m,
                               plan.tile_n,
                               plan.item_heads,
                               plan.num_splits,
                               num_split_rows(problem),
                               floats(kPieceSplitOut),
                               floats(kPieceSplitLse)};
  std::byte* thread_scratch = workspace_piece(plan, workspace, kPieceThreadScratch).data();
  const std::size_t scratch_bytes = simd_scratch_bytes(problem, plan.tile_m, plan.tile_n);
  ItemQueue queue(context, plan.num_threads);
  const std::int64_t num_heads = problem.batch * problem.num_heads_q;

#pragma omp parallel num_threads(plan.num_threads)
  {
    Scratch scratch{};
    scratch.carve(thread_scratch + static_cast<std::size_t>(omp_get_thread_num()) * scratch_bytes, problem,
                  plan.tile_m, plan.tile_n);
    WorkCursor cursor(queue);
    for (WorkItem item = cursor.advance(); item.num_rows() > 0; item = cursor.advance()) {
      if (context.decodes(item)) {
        context.kernels.decode(context, item, scratch);
      } else {
        context.kernels.prefill(context, item, scratch, cursor);
      }
    }
    if (context.num_splits > 1) {
#pragma omp barrier
#pragma omp for schedule(dynamic)
      for (std::int64_t head = 0; head < num_heads; ++head) merge_sequence(context, head);
    }
  }
}

}  // namespace onepass::cpu
