// cpu/simd/prefill.cpp - attention forward for many query rows: lanes are queries
//
// Problem    one work item: up to tile_m packed query rows of one (sequence, key head) against a range of
//            key blocks; every layout, dtype, mask and score feature
// Tile       tile_m rows as sub tiles of 64 (4 vectors of 16 lanes) x tile_n keys. Scores are kept
//            transposed, scores^T (keys, 64), so that row statistics are vertical operations: no lane ever
//            crosses another
// Blocking   K and V tiles are gathered once per item into contiguous f32 (the one place for formats,
//            strides and pages) and serve all sub tiles; per sub tile one product makes scores^T = K Q^T,
//            the softmax runs over it in place, a second product adds V^T P^T to out^T. At head_dim 128,
//            tile_n 128: Q^T 32 KiB and scores^T 32 KiB alternate in L1 (48 KiB), K and V tiles (2 x 72
//            KiB) and the item's Q^T and out^T stay in L2
// Masks      a band per query (tile_range.h): blocks outside are not visited, keys outside a sub tile's
//            union are not computed, the rest is selected element-wise after the product
// Numerics   f32; a running maximum that starts at -inf, differences before multiplication; out^T of a key
//            tile is summed apart and joins the rescaled earlier sum once. V rows that hold NaN or infinity
//            meet only the rows that see them (0 x NaN is NaN)
// Sources    online softmax of Milakov and Gimelshein (arXiv:1805.02867) in tiles, as in Dao et al.
//            (arXiv:2205.14135)
#include "backends/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/prefill.cpp"
#include "hwy/foreach_target.h"
// After foreach_target
#include <array>

#include "backends/cpu/simd/finish-inl.h"
#include "backends/cpu/simd/operands-inl.h"
#include "backends/cpu/simd/score-inl.h"
#include "backends/cpu/simd/targets-inl.h"
#include "backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

// Keys of the softmax between two rounds of prefetching: a few cache lines at a time, a core waits for at
// most 16.
constexpr std::int64_t kStepKeys = 8;

/// Packed rows and their parts of the scratch.
struct SubTile : TileRows {
  float *q, *out, *row_max, *row_sum;  // (elements(head_dim), 64), (head_dim_v, 64), (64), (64)
};

template <class Operands>
class PrefillItem {
 public:
  PrefillItem(const ForwardContext& context, const WorkItem& item, const Scratch& scratch, WorkCursor& cursor)
      : context_(context),
        problem_(context.problem),
        item_(item),
        scratch_(scratch),
        cursor_(cursor),
        rule_(score_rule(context, item)),
        scores_(context, item, scratch, rule_),
        product_(Operands::product(context.kernels)),
        dim_(problem_.head_dim),
        dim_v_(problem_.head_dim_v) {}

  void run() {
    for (std::int64_t t = 0; t < num_sub_tiles(); ++t) start(sub_tile(t));
    for (std::int64_t n_block = item_.n_block_min; n_block < item_.n_block_max; ++n_block)
      visit_block(n_block);
    for (std::int64_t t = 0; t < num_sub_tiles(); ++t) finish(sub_tile(t));
  }

 private:
  std::int64_t num_sub_tiles() const { return (item_.num_rows() + kM - 1) / kM; }

  SubTile sub_tile(std::int64_t t) const {
    SubTile tile{};
    static_cast<TileRows&>(tile) = scores_.tile_rows(t);
    const std::int64_t dim_padded = scratch_.k_stride - 16, dim_v_padded = scratch_.v_stride - 16;
    tile.q = scratch_.q + t * dim_padded * kM;
    tile.out = scratch_.out + t * dim_v_padded * kM;
    tile.row_max = scratch_.row_max + t * kM;
    tile.row_sum = scratch_.row_sum + t * kM;
    return tile;
  }

  void start(const SubTile& tile) const {
    for (std::int64_t r = 0; r < kM; ++r) {
      tile.row_max[r] = -kInfinity;
      tile.row_sum[r] = 0.0f;
    }
    std::memset(tile.out, 0, static_cast<std::size_t>(dim_v_ * kM) * sizeof(float));
  }

  void pack_queries(const SubTile& tile) const {
    with_format(problem_.q_dtype, [&]<class Format>(Format) {
      const auto* q = static_cast<const typename Format::Raw*>(context_.args.q.data);
      const auto address = [&](std::int64_t r) {
        const RowPosition position = scores_.row_position(tile, r);
        return q + row_offset_q(item_.sequence, problem_.q, position.query, position.head);
      };
      for (std::int64_t r = 0; r < tile.columns; ++r) {
        if (problem_.q.dim == 1) prefetch_row(address(r + kPrefetchRows), dim_);
        Operands::template pack_row<Format>(address(r), problem_.q.dim, dim_,
                                            scratch_.rows + r * scratch_.row_stride, scratch_.line);
      }
    });
    transpose(scratch_.rows, scratch_.row_stride, tile.columns, elements(dim_), tile.q, kM);
  }

  /// Elements that hold n terms of a sum.
  static std::int64_t elements(std::int64_t n) { return (n + Operands::kTerms - 1) / Operands::kTerms; }

  void gather_keys(std::int64_t key_begin, std::int64_t num_keys) const {
    row_offsets_k(problem_, context_.args, item_.sequence, problem_.k, key_begin, num_keys, item_.head_k,
                  scratch_.k_offsets);
    with_format(problem_.kv_dtype, [&]<class Format>(Format) {
      const auto* k = static_cast<const typename Format::Raw*>(context_.args.k.data);
      for (std::int64_t j = 0; j < num_keys; ++j) {
        if (problem_.k.dim == 1) {
          prefetch_row(k + scratch_.k_offsets[min_index(j + kPrefetchRows, num_keys - 1)], dim_);
        }
        Operands::template pack_row<Format>(k + scratch_.k_offsets[j], problem_.k.dim, dim_,
                                            scratch_.k + j * scratch_.k_stride, scratch_.line);
      }
    });
    if (!problem_.k_descale_per_page) return;
    for (std::int64_t j = 0; j < num_keys; ++j) {
      multiply_row(scratch_.k + j * scratch_.k_stride, dim_,
                   row_descale(problem_, context_.args, item_.sequence, context_.args.k_descale,
                               key_begin + j, item_.head_k));
    }
  }

  /// Returns whether all values are finite, if asked.
  bool gather_values(std::int64_t key_begin, std::int64_t num_keys, bool check) const {
    row_offsets_k(problem_, context_.args, item_.sequence, problem_.v, key_begin, num_keys, item_.head_k,
                  scratch_.v_offsets);
    bool finite = true;
    with_format(problem_.kv_dtype, [&]<class Format>(Format) {
      const auto* v = static_cast<const typename Format::Raw*>(context_.args.v.data);
      for (std::int64_t j = 0; j < num_keys; j += Operands::kTerms) {
        if (problem_.v.dim == 1) {
          for (std::int64_t t = 0; t < Operands::kTerms; ++t) {
            prefetch_row(v + scratch_.v_offsets[min_index(j + t + kPrefetchRows, num_keys - 1)], dim_v_);
          }
        }
        const auto* second =
            Operands::kTerms == 2 && j + 1 < num_keys ? v + scratch_.v_offsets[j + 1] : nullptr;
        const bool row_finite = Operands::template pack_values<Format>(
            v + scratch_.v_offsets[j], second, problem_.v.dim, dim_v_,
            scratch_.v + j / Operands::kTerms * scratch_.v_stride, scratch_.line, check);
        finite = finite && row_finite;
      }
    });
    if (!problem_.v_descale_per_page) return finite;
    for (std::int64_t j = 0; j < num_keys; ++j) {
      float* row = scratch_.v + j * scratch_.v_stride;
      multiply_row(row, dim_v_,
                   row_descale(problem_, context_.args, item_.sequence, context_.args.v_descale,
                               key_begin + j, item_.head_k));
      finite = finite && (!check || all_finite(row, dim_v_));
    }
    return finite;
  }

  void visit_block(std::int64_t n_block) {
    const std::int64_t key_begin = n_block * context_.tile_n;
    const std::int64_t key_end = min_index(key_begin + context_.tile_n, item_.sequence.seqlen_k);
    const bool masked = !scores_.seen_by_all(item_.row_begin / problem_.group(),
                                             (item_.row_end - 1) / problem_.group() + 1, key_begin, key_end);
    gather_keys(key_begin, key_end - key_begin);
    const bool v_finite = gather_values(key_begin, key_end - key_begin, masked);
    list_prefetches(n_block);
    for (std::int64_t t = 0; t < num_sub_tiles(); ++t) {
      prefetch_goal_ = prefetch_end_ * (t + 1) / num_sub_tiles();
      const SubTile tile = sub_tile(t);
      if (n_block == item_.n_block_min) pack_queries(tile);
      visit_sub_tile(tile, key_begin, key_end, v_finite);
    }
  }

  /// Notes the rows that are needed after the sub tile at work: queries of the next ones (first block), the
  /// next key block, and at the end the rows of out and the start of the next item. They are asked for step
  /// by step during the softmax, which leaves the load units idle, so that memory works while the vector
  /// units do.
  void list_prefetches(std::int64_t n_block) {
    prefetch_next_ = prefetch_end_ = 0;
    if (n_block == item_.n_block_min) list_queries(item_, kM, item_.num_rows());
    if (n_block + 1 < item_.n_block_max) return list_keys(item_, n_block + 1);
    for (std::int64_t r = item_.row_begin; r < item_.row_end && problem_.out.dim == 1; ++r) {
      list_row(context_.args.out,
               row_offset_q(item_.sequence, problem_.out, r / problem_.group(),
                            item_.head_k * problem_.group() + r % problem_.group()),
               dim_v_);
    }
    const WorkItem& next = cursor_.next();
    if (next.num_rows() == 0) return;
    list_queries(next, 0, min_index(kM, next.num_rows()));
    if (next.n_block_min < next.n_block_max) list_keys(next, next.n_block_min);
  }

  void list_queries(const WorkItem& item, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = item.row_begin + begin; r < item.row_begin + end && problem_.q.dim == 1; ++r) {
      list_row(context_.args.q,
               row_offset_q(item.sequence, problem_.q, r / problem_.group(),
                            item.head_k * problem_.group() + r % problem_.group()),
               dim_);
    }
  }

  void list_keys(const WorkItem& item, std::int64_t n_block) {
    if (problem_.k.dim != 1 || problem_.v.dim != 1) return;
    const std::int64_t begin = n_block * context_.tile_n;
    const std::int64_t count = min_index(context_.tile_n, item.sequence.seqlen_k - begin);
    std::int64_t* k_offsets = scratch_.k_offsets + context_.tile_n;
    std::int64_t* v_offsets = scratch_.v_offsets + context_.tile_n;
    row_offsets_k(problem_, context_.args, item.sequence, problem_.k, begin, count, item.head_k, k_offsets);
    row_offsets_k(problem_, context_.args, item.sequence, problem_.v, begin, count, item.head_k, v_offsets);
    for (std::int64_t j = 0; j < count; ++j) list_row(context_.args.k, k_offsets[j], dim_);
    for (std::int64_t j = 0; j < count; ++j) list_row(context_.args.v, v_offsets[j], dim_v_);
  }

  void list_row(const TensorView& view, std::int64_t offset, std::int64_t n) {
    const std::int64_t bytes = dtype_bytes(view.dtype);
    scratch_.prefetch[prefetch_end_++] = {static_cast<const char*>(view.data) + offset * bytes, n * bytes};
  }

  /// Asks for this step's share of the listed rows.
  void prefetch_step() {
    const std::int64_t share = prefetch_goal_ > prefetch_next_
                                   ? (prefetch_goal_ - prefetch_next_ - 1) / max_index(num_steps_, 1) + 1
                                   : 0;
    for (std::int64_t end = prefetch_next_ + share; prefetch_next_ < end; ++prefetch_next_) {
      prefetch_row(scratch_.prefetch[prefetch_next_].address, scratch_.prefetch[prefetch_next_].bytes);
    }
    --num_steps_;
  }

  void visit_sub_tile(const SubTile& tile, std::int64_t key_begin, std::int64_t key_end, bool v_finite) {
    const KeyRange visible =
        visible_keys(item_.band, item_.sequence.seqlen_k, tile.query_begin, tile.query_end);
    // Keys of the tile that some row sees, widened to whole elements of P and V; the mask hides what that
    // adds.
    std::int64_t begin = max_index(visible.begin, key_begin) - key_begin;
    std::int64_t end = min_index(visible.end, key_end) - key_begin;
    if (begin >= end) return;
    begin = begin / Operands::kTerms * Operands::kTerms;
    end = min_index(elements(end) * Operands::kTerms, key_end - key_begin);
    const std::int64_t num_keys = end - begin, first_key = key_begin + begin;
    const float* k = scratch_.k + begin * scratch_.k_stride;
    const float* v = scratch_.v + begin / Operands::kTerms * scratch_.v_stride;
    const bool masked = !scores_.seen_by_all(tile.query_begin, tile.query_end, first_key, key_begin + end);

    const auto score_part = [&](const Part& p) {
      product_(k + p.key_begin * scratch_.k_stride, scratch_.k_stride, 1, p.key_end - p.key_begin,
               elements(dim_), tile.q + p.column_begin, p.column_end - p.column_begin,
               scratch_.scores + p.key_begin * kM + p.column_begin, nullptr);
    };
    const auto output_part = [&](const Part& p, const float* rescale) {
      const std::int64_t element = p.key_begin / Operands::kTerms;
      product_(v + element * scratch_.v_stride, 1, scratch_.v_stride, dim_v_,
               elements(p.key_end - p.key_begin), scratch_.scores + element * kM + p.column_begin,
               p.column_end - p.column_begin, tile.out + p.column_begin, rescale);
    };

    if (!masked) {
      const Part whole{0, num_keys, 0, tile.columns};
      score_part(whole);
      if (!rule_.direct) scores_.finish(tile, first_key, num_keys, nullptr);
      softmax(tile, num_keys);
      return output_part(whole, scratch_.rescale);
    }
    for_each_part(tile, first_key, num_keys, score_part);
    if (!rule_.direct) scores_.finish(tile, first_key, num_keys, nullptr);
    scores_.mask(tile, first_key, num_keys);
    softmax(tile, num_keys);
    if (!v_finite) return add_visible_values(tile, num_keys, v);
    rescale_out(tile);
    alignas(64) static constexpr auto kOnes = [] {
      std::array<float, kM> ones{};
      ones.fill(1.0f);
      return ones;
    }();
    for_each_part(tile, first_key, num_keys, [&](const Part& p) { output_part(p, kOnes.data()); });
  }

  /// Keys (from the first of the sub tile) and columns of scores^T.
  struct Part {
    std::int64_t key_begin, key_end, column_begin, column_end;
  };

  /// Covers what the rows of a masked sub tile see by parts of 16 keys and up, 16 columns and up: along a
  /// diagonal about 5/8 of the rectangle.
  template <class F>
  void for_each_part(const SubTile& tile, std::int64_t first_key, std::int64_t num_keys, const F& f) const {
    constexpr std::int64_t kStep = 16;
    KeyRange seen[kM / kStep];
    const std::int64_t num_groups = (tile.columns + kStep - 1) / kStep;
    for (std::int64_t g = 0; g < num_groups; ++g) {
      seen[g] = visible_keys(item_.band, item_.sequence.seqlen_k, scores_.row_position(tile, g * kStep).query,
                             scores_.row_position(tile, g * kStep + kStep - 1).query + 1);
    }
    const auto part_from = [&](std::int64_t key) {
      const std::int64_t key_end = min_index(key + kStep, num_keys);
      const auto hidden = [&](std::int64_t g) {
        return seen[g].end <= first_key + key || seen[g].begin >= first_key + key_end;
      };
      std::int64_t begin = 0, end = num_groups;
      while (begin < end && hidden(begin)) ++begin;
      while (begin < end && hidden(end - 1)) --end;
      return Part{key, key_end, begin * kStep, min_index(end * kStep, tile.columns)};
    };
    for (Part part = part_from(0);;) {
      Part next = part;  // grows while the columns stay the same
      while (part.key_end < num_keys) {
        next = part_from(part.key_end);
        if (next.column_begin != part.column_begin || next.column_end != part.column_end) break;
        part.key_end = next.key_end;
      }
      if (part.column_begin < part.column_end) f(part);
      if (part.key_end >= num_keys) return;
      part = next;
    }
  }

  void rescale_out(const SubTile& tile) const {
    for (std::int64_t d = 0; d < dim_v_; ++d) {
      for (std::int64_t c = 0; c < tile.columns; c += kLanes) {
        float* out = tile.out + d * kM + c;
        hn::Store(hn::Mul(hn::Load(kF32, out), hn::Load(kF32, scratch_.rescale + c)), kF32, out);
      }
    }
  }

  /// scores^T becomes P^T; row_max, row_sum and rescale (the factor for earlier sums) follow.
  void softmax(const SubTile& tile, std::int64_t num_keys) {
    num_steps_ = (num_keys + kStepKeys - 1) / kStepKeys;
    constexpr std::int64_t kVectors = kRegisters == 32 ? 4 : 2;
    std::int64_t c = 0;
    for (; c + kVectors * kLanes <= tile.columns; c += kVectors * kLanes)
      softmax_columns<kVectors>(tile, num_keys, c);
    for (; c < tile.columns; c += kLanes) softmax_columns<1>(tile, num_keys, c);
  }

  template <std::int64_t kVectors>
  HWY_INLINE void softmax_columns(const SubTile& tile, std::int64_t num_keys, std::int64_t c) {
    const V32 exponent_scale = hn::Set(kF32, rule_.exponent_scale);
    float* HWY_RESTRICT scores = scratch_.scores + c;
    V32 old_max[kVectors], top[kVectors], sum[kVectors];
    HWY_UNROLL(4)
    for (std::int64_t v = 0; v < kVectors; ++v) {
      old_max[v] = top[v] = hn::Load(kF32, tile.row_max + c + v * kLanes);
      sum[v] = hn::Zero(kF32);
    }
    for (std::int64_t j = 0; j < num_keys; ++j) {
      HWY_UNROLL(4)
      for (std::int64_t v = 0; v < kVectors; ++v) {
        top[v] = hn::Max(top[v], hn::Load(kF32, scores + j * kM + v * kLanes));
      }
    }
    HWY_UNROLL(4)
    for (std::int64_t v = 0; v < kVectors; ++v) {
      hn::Store(top[v], kF32, tile.row_max + c + v * kLanes);
      // A row that has seen no key yet has maximum -inf; 0 in its place keeps -inf - (-inf) from occurring.
      top[v] = hn::IfThenZeroElse(hn::Eq(top[v], hn::Set(kF32, -kInfinity)), top[v]);
    }
    const auto weight = [&](std::int64_t j, std::int64_t v) HWY_ATTR {
      return exp2_nonpositive(
          hn::Mul(hn::Sub(hn::Load(kF32, scores + j * kM + v * kLanes), top[v]), exponent_scale));
    };
    const std::int64_t whole = num_keys / Operands::kTerms * Operands::kTerms;
    for (std::int64_t step = 0; step < whole; step += kStepKeys) {
      const std::int64_t step_end = min_index(step + kStepKeys, whole);
      for (std::int64_t j = step; j < step_end; j += Operands::kTerms) {
        HWY_UNROLL(4)
        for (std::int64_t v = 0; v < kVectors; ++v) {
          V32 p[Operands::kTerms];
          HWY_UNROLL(2)
          for (std::int64_t t = 0; t < Operands::kTerms; ++t) {
            p[t] = weight(j + t, v);
            sum[v] = hn::Add(sum[v], p[t]);
          }
          Operands::store_weights(p, scores + v * kLanes, j);
        }
      }
      prefetch_step();
    }
    if (whole < num_keys) {  // an odd number of keys in pairs: the last one's partner has weight 0
      HWY_UNROLL(4)
      for (std::int64_t v = 0; v < kVectors; ++v) {
        const V32 p[2] = {weight(whole, v), hn::Zero(kF32)};
        sum[v] = hn::Add(sum[v], p[0]);
        Operands::store_weights(p, scores + v * kLanes, whole);
      }
    }
    HWY_UNROLL(4)
    for (std::int64_t v = 0; v < kVectors; ++v) {
      const V32 rescale = exp2_nonpositive(hn::Mul(hn::Sub(old_max[v], top[v]), exponent_scale));
      float* row_sum = tile.row_sum + c + v * kLanes;
      hn::Store(hn::MulAdd(hn::Load(kF32, row_sum), rescale, sum[v]), kF32, row_sum);
      hn::Store(rescale, kF32, scratch_.rescale + c + v * kLanes);
    }
  }

  /// The second product row by row over the keys that the row sees, for tiles that hide NaN or infinity
  /// from some.
  void add_visible_values(const SubTile& tile, std::int64_t num_keys, const float* v) const {
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      for (std::int64_t d = 0; d < dim_v_; ++d) {
        float sum = 0.0f;
        const std::int64_t end = min_index(scratch_.visible_end[r], num_keys);
        for (std::int64_t j = scratch_.visible_begin[r]; j < end; ++j) {
          sum += Operands::weight(scratch_.scores, j, r) * Operands::value(v, scratch_.v_stride, j, d);
        }
        float& out = tile.out[d * kM + r];
        out = out * scratch_.rescale[r] + sum;
      }
    }
  }

  void finish(const SubTile& tile) const {
    transpose(tile.out, kM, dim_v_, tile.columns, scratch_.rows, scratch_.row_stride);
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      finish_row(context_, item_, rule_, tile.row_begin + r, tile.row_max[r], tile.row_sum[r],
                 scratch_.rows + r * scratch_.row_stride);
    }
  }

  const ForwardContext& context_;
  const AttentionProblem& problem_;
  const WorkItem& item_;
  const Scratch& scratch_;
  WorkCursor& cursor_;
  const ScoreRule rule_;
  const TileScores scores_;
  const Product product_;
  const std::int64_t dim_, dim_v_;
  std::int64_t prefetch_next_ = 0, prefetch_end_ = 0, prefetch_goal_ = 0;  // positions in scratch.prefetch
  std::int64_t num_steps_ = 0;                                             // left for prefetch_goal_
};

}  // namespace

void prefill_item(const ForwardContext& context, const WorkItem& item, const Scratch& scratch,
                  WorkCursor& cursor) {
#if HWY_TARGET <= HWY_AVX3
  const DType kv = context.problem.kv_dtype;
  const bool bf16_holds_all = context.problem.q_dtype == DType::BF16 && kv != DType::F32 &&
                              kv != DType::F16 && !context.problem.has_page_factors();
  if (bf16_holds_all && context.kernels.product_bf16 != nullptr) {
    return PrefillItem<Bf16PairOperands>(context, item, scratch, cursor).run();
  }
#endif
  PrefillItem<F32Operands>(context, item, scratch, cursor).run();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();
