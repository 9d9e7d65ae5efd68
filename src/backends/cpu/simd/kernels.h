// What the SIMD backend's parts agree on: the work of one call, per-thread scratch, and the table of
// functions that each instruction set fills in. Plain C++; nothing here depends on an instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backends/cpu/sequence.h"
#include "backends/cuda/kernels/common/key_parts.h"
#include "dispatch/heuristics_forward.h"
#include "dispatch/key_parts.h"
#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass::cpu {

/// Packed query rows that one register-blocked product handles: 4 vectors of 16 f32 lanes.
inline constexpr std::int64_t kSubTileM = 64;

/// One piece of work: some packed rows of one (sequence, key head), or of each of several key heads, against
/// a range of key blocks. Packed row r is query r / group of head head_k * group + r % group.
struct WorkItem {
  Sequence sequence;
  KeyBand band;
  std::int64_t head_k, num_heads_k = 1;   // key heads; more than one only in the row-wise path
  std::int64_t row_begin, row_end;        // packed rows
  std::int64_t n_block_min, n_block_max;  // key blocks of tile_n keys
  std::int64_t split_idx, num_splits;     // of the sequence's keys

  std::int64_t num_rows() const { return row_end - row_begin; }  // of each key head
  /// The same item of its key head number `h` alone.
  WorkItem of_head(std::int64_t h) const {
    WorkItem item = *this;
    item.head_k += h;
    item.num_heads_k = 1;
    return item;
  }
};

/// Hands the items of a call to its threads.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  /// The next item, for the calling thread alone; without rows when all are taken.
  virtual WorkItem take() = 0;
};

/// A thread's place in the queue: the item at work and, once asked for, the one that follows it, so that
/// its first rows can be on their way to the cache. Asking early would keep work from idle threads, so
/// items ask near their end.
class WorkCursor {
 public:
  explicit WorkCursor(WorkQueue& queue) : queue_(queue) {}
  const WorkItem& next() {
    if (!taken_) next_ = queue_.take();
    taken_ = true;
    return next_;
  }
  WorkItem advance() {
    next();
    taken_ = false;
    return next_;
  }

 private:
  WorkQueue& queue_;
  WorkItem next_{};
  bool taken_ = false;
};

/// A row that will be read or written soon.
struct PrefetchRow {
  const char* address;
  std::int64_t bytes;
};

/// How raw dot products become exponents, per item: p = exp2((s - max) * exponent_scale) with s = the raw
/// dot product when `direct`, or the finished score (scale, softcap, ALiBi, bias) when not. The difference
/// is taken before the multiplication, so the largest score has p = 1 exactly at any magnitude.
struct ScoreRule {
  bool direct;
  float scale;           // softmax_scale, times k_descale unless that has factors of pages
  float exponent_scale;  // log2(e), times scale when direct; positive
  double lse_scale;      // natural-log score of one unit of s
};

struct KernelTable;
struct GradientContext;  // gradients.h
struct GradientItem;
struct GradientScratch;
struct BiasItem;

/// Everything about a call that all items share.
struct ForwardContext {
  const AttentionProblem& problem;
  const ForwardArguments& args;
  const KernelTable& kernels;
  std::int64_t tile_m, tile_n;
  std::int64_t item_heads;  // key heads of an item
  std::int64_t num_splits;
  std::int64_t num_split_rows;
  float* split_out;  // (num_splits, num_split_rows, head_dim_v), null when num_splits == 1
  float* split_lse;  // (num_splits, num_split_rows)

  /// Parts of a sequence's keys.
  std::int64_t splits_of(const Sequence& s) const {
    if (!problem.batch_invariant) return num_splits;
    return s.seqlen_q <= most_rows_of_parts(problem) ? num_key_parts(s.seqlen_k) : 1;
  }
  /// Whether an item takes the row-wise path. Where bits may not depend on how a sequence's rows are cut into
  /// items, all of them go one way.
  bool decodes(const WorkItem& item) const {
    const std::int64_t rows =
        problem.batch_invariant ? item.sequence.seqlen_q * problem.group() : item.num_rows();
    return rows <= kMaxDecodeRows;
  }
  /// Index into the rows of split_out and split_lse: query_row, and of a batch-invariant call [B, Hq, most
  /// rows of parts].
  std::int64_t split_row(const Sequence& s, std::int64_t i, std::int64_t h) const {
    if (problem.batch_invariant) return (s.batch_idx * problem.num_heads_q + h) * rows_of_parts() + i;
    return query_row(s, i, h);
  }
  /// Index among all rows of all query heads: [B, Hq, Sq], [Hq, Tq] when packed.
  std::int64_t query_row(const Sequence& s, std::int64_t i, std::int64_t h) const {
    if (problem.q_layout == SequenceLayout::Packed) return h * problem.total_q + s.q_row0 + i;
    return (s.batch_idx * problem.num_heads_q + h) * problem.seqlen_q + i;
  }

 private:
  std::int64_t rows_of_parts() const { return min_index(problem.seqlen_q, most_rows_of_parts(problem)); }
};

ScoreRule score_rule(const ForwardContext& context, const WorkItem& item);

/// Per-thread memory, carved from one block. Sizes in floats; 64-byte aligned. The two paths use the same
/// pieces.
struct Scratch {
  float* q;                     // prefill: (sub tiles, head_dim, 64) transposed; decode: (rows, head_dim)
  float* out;                   // prefill: (sub tiles, head_dim_v, 64) transposed; decode: (rows, head_dim_v)
  float* k;                     // (tile_n, k_stride); decode: the first rows, for a chunk
  float* v;                     // (tile_n, v_stride)
  float* scores;                // prefill: (tile_n, 64), keys by rows; decode: (64, tile_n)
  float* bias;                  // as scores; null without bias
  float* rows;                  // (64, row_stride): rows on their way into or out of the transposed form;
                                // decode: (rows, head_dim_v), the sums of a tile
  float* line;                  // (2, row_stride): rows on their way into another format
  float* row_max;               // (sub tiles, 64)
  float* row_sum;               // (sub tiles, 64)
  float* rescale;               // (64)
  float* slope;                 // (64) ALiBi slope of each row
  float* position;              // (64) query position of each row, relative to the key tile
  std::int32_t* visible_begin;  // (64) first visible key of each row, relative to the key tile
  std::int32_t* visible_end;    // (64)
  std::int64_t* k_offsets;      // (tile_n) element offsets of key rows
  std::int64_t* v_offsets;
  PrefetchRow* prefetch;  // (2 tile_m + 2 tile_n + 64)
  std::int64_t k_stride, v_stride, row_stride, tile_n_padded;

  /// Carves `memory`, or only counts when it is null. Returns the bytes taken.
  std::size_t carve(std::byte* memory, const AttentionProblem& problem, std::int64_t tile_m,
                    std::int64_t tile_n);
};

/// C[a][0..columns) (+)= sum over k of A[a * row_stride + k * k_stride] * B[k * 64 + 0..columns), for
/// `rows` rows a; C has row stride 64 as well. With `rescale` (64) the old C is multiplied by it column by
/// column and kept, without it C is overwritten. Serves both products: scores^T = K Q^T and out^T = V^T
/// P^T. The elements of A and B are f32, or pairs of bf16 (operands-inl.h), those of C are f32. Whoever
/// brings a faster product replaces this pointer in the table.
using Product = void (*)(const float* a, std::int64_t row_stride, std::int64_t k_stride, std::int64_t rows,
                         std::int64_t num_k, const float* b, std::int64_t columns, float* c,
                         const float* rescale);

/// The functions of one instruction set.
struct KernelTable {
  const char* instruction_set;
  void (*prefill)(const ForwardContext&, const WorkItem&, const Scratch&, WorkCursor&);
  void (*decode)(const ForwardContext&, const WorkItem&, const Scratch&);
  /// Merges the split results of query i, head h into out and softmax_lse.
  void (*merge_row)(const ForwardContext&, const Sequence&, std::int64_t i, std::int64_t h);
  /// Of a backward call: its items, and delta of query i, head h.
  void (*gradients)(const GradientContext&, const GradientItem&, const GradientScratch&);
  void (*bias_gradients)(const GradientContext&, const BiasItem&, const GradientScratch&);
  float (*row_delta)(const GradientContext&, const Sequence&, std::int64_t i, std::int64_t h, float* line);
  Product product_f32;
  Product product_bf16;  // null: bf16 is converted to f32
};

}  // namespace onepass::cpu
