// cpu/simd/gradients.cpp - attention backward on the CPU's vector units: one item
//
// Problem    some packed query rows of one (sequence, key head) against some key blocks: dK and dV of the
// blocks,
//            dQ of the rows, or both; and the gradient of a bias. Every layout, dtype, mask and score feature
// Tile       64 query rows x tile_n keys. Scores lie transposed, (keys, 64), so that lse and delta of a row
// are
//            those of a lane
// Products   of product.cpp, f32: S^T = K Q^T and dP^T = V dO^T as in prefill.cpp, then
//              dQ^T += K^T dS^T     (head_dim, 64 rows)
//              dV   += P^T dO       (keys, 64 columns of head_dim_v at a time), dO and dV in column panels
//              dK   += dS^T Q       likewise
//            Five where an item makes keys and queries, so P and dS are made once; four or three otherwise
// Blocking   K, V, dK and dV of a few blocks stay in L2 while the tiles of rows go by, each packed once for
//            all of them: packing a tile costs a third of what its products with one block do
// Numerics   f32; P = 2^(scale log2(e) S - lse log2(e)), 0 where the mask forbids. Where a tile hides NaN or
//            infinity of a row or key from some, its sums are formed pair by pair over what is visible
// Sources    Dao et al. 2022 (arXiv:2205.14135), algorithm 4, with the loops of prefill.cpp
#include "backends/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/gradients.cpp"
#include "hwy/foreach_target.h"
// After foreach_target
#include <array>
#include <numbers>

#include "backends/cpu/simd/gradients.h"
#include "backends/cpu/simd/score-inl.h"
#include "backends/cpu/simd/targets-inl.h"
#include "backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// What adds to a product's result instead of replacing it.
const float* ones() {
  alignas(64) static constexpr auto kOnes = [] {
    std::array<float, kM> all{};
    all.fill(1.0f);
    return all;
  }();
  return kOnes.data();
}

class Gradients {
 public:
  Gradients(const GradientContext& context, const WorkItem& rows, std::int64_t head_k,
            const GradientScratch& scratch)
      : context_(context),
        problem_(context.forward.problem),
        f_(context.args.forward),
        item_(rows),
        head_k_(head_k),
        x_(scratch),
        rule_(score_rule(context.forward, rows)),
        scores_(context.forward, rows, scratch.tile, rule_),
        dim_(problem_.head_dim),
        dim_v_(problem_.head_dim_v) {}

  std::int64_t num_tiles() const { return ceil_div(item_.num_rows(), kM); }

  /// Keys of a block; none past the sequence's end.
  KeyRange block_keys(std::int64_t n_block) const {
    const std::int64_t begin = n_block * context_.tile_n;
    return {begin, max_index(begin, min_index(begin + context_.tile_n, item_.sequence.seqlen_k))};
  }

  /// K and V of these keys, instead of those before.
  void gather_keys(KeyRange keys) {
    first_key_ = keys.begin;
    gather(f_.k, problem_.k, dim_, keys, x_.tile.k, x_.tile.k_stride, x_.tile.k_offsets);
    gather(f_.v, problem_.v, dim_v_, keys, x_.tile.v, x_.tile.v_stride, x_.tile.v_offsets);
  }

  /// P^T and dS^T of a tile against a block of the gathered keys, the latter with respect to the final score,
  /// for the keys that it returns (relative to the first gathered; none where nothing is visible).
  KeyRange probabilities(const TileRows& tile, KeyRange keys) {
    const KeyRange visible =
        visible_keys(item_.band, item_.sequence.seqlen_k, tile.query_begin, tile.query_end);
    const KeyRange range{max_index(visible.begin, keys.begin) - first_key_,
                         min_index(visible.end, keys.end) - first_key_};
    if (range.begin >= range.end) return {0, 0};
    if (packed_row_ != tile.row_begin) pack(tile);
    packed_row_ = tile.row_begin;
    const std::int64_t count = range.end - range.begin, first = first_key_ + range.begin;
    const Product product = context_.forward.kernels.product_f32;
    product(x_.tile.k + range.begin * x_.tile.k_stride, x_.tile.k_stride, 1, count, dim_, x_.tile.q,
            tile.columns, x_.tile.scores, nullptr);
    product(x_.tile.v + range.begin * x_.tile.v_stride, x_.tile.v_stride, 1, count, dim_v_, x_.tile.out,
            tile.columns, x_.dp, nullptr);
    if (!rule_.direct) scores_.finish(tile, first, count, x_.slopes);
    masked_ = !scores_.seen_by_all(tile.query_begin, tile.query_end, first, first + count);
    if (masked_) scores_.mask(tile, first, count);
    differentiate(tile, count);
    return range;
  }

  /// dS becomes the gradient of the capped dot product.
  void apply_slopes(const TileRows& tile, std::int64_t count) const {
    if (x_.slopes == nullptr) return;
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t c = 0; c < tile.columns; c += kLanes) {
        float* ds = x_.dp + j * kM + c;
        hn::Store(hn::Mul(hn::Load(kF32, ds), hn::Load(kF32, x_.slopes + j * kM + c)), kF32, ds);
      }
    }
  }

  void add_sums(const TileRows& tile, std::int64_t t, KeyRange range, bool keys, bool queries) const {
    const std::int64_t count = range.end - range.begin;
    if (masked_ && !finite(tile, range)) return add_visible(tile, t, range, keys, queries);
    const Product product = context_.forward.kernels.product_f32;
    if (queries) {
      product(x_.tile.k + range.begin * x_.tile.k_stride, 1, x_.tile.k_stride, dim_, count, x_.dp,
              tile.columns, dq_of(t), ones());
    }
    if (!keys) return;
    const auto add_panels = [&](const float* weights, const float* rows, std::int64_t dim, float* sums) {
      for (std::int64_t p = 0; p * kM < dim; ++p) {
        product(weights, kM, 1, count, tile.columns, rows + p * kM * kM, min_index(kM, dim - p * kM),
                sums + (p * x_.tile.tile_n_padded + range.begin) * kM, ones());
      }
    };
    add_panels(x_.tile.scores, x_.dout_panels, dim_v_, x_.dv_panels);
    add_panels(x_.dp, x_.q_panels, dim_, x_.dk_panels);
  }

  float* dq_of(std::int64_t t) const { return x_.dq + t * (x_.tile.k_stride - 16) * kM; }

  void clear_keys() const {
    const auto clear = [&](float* panels, std::int64_t dim) {
      std::memset(panels, 0,
                  static_cast<std::size_t>(ceil_div(dim, kM) * x_.tile.tile_n_padded * kM) * sizeof(float));
    };
    clear(x_.dk_panels, dim_);
    clear(x_.dv_panels, dim_v_);
  }

  void store_keys(KeyRange keys) const {
    const GradientProblem& g = context_.gradient;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      store_key_row(context_.args.dk, g.dk, x_.dk_panels, dim_, j, j - keys.begin,
                    static_cast<float>(problem_.softmax_scale));
      store_key_row(context_.args.dv, g.dv, x_.dv_panels, dim_v_, j, j - keys.begin, 1.0f);
    }
  }

  void clear_queries() const {
    const std::int64_t floats = num_tiles() * (x_.tile.k_stride - 16) * kM;
    std::memset(x_.dq, 0, static_cast<std::size_t>(floats) * sizeof(float));
  }

  void store_queries(const TileRows& tile, std::int64_t t) const {
    transpose(dq_of(t), kM, dim_, tile.columns, x_.tile.rows, x_.tile.row_stride);
    const V32 scale = hn::Set(kF32, static_cast<float>(problem_.softmax_scale));
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      float* row = x_.tile.rows + r * x_.tile.row_stride;
      for (std::int64_t d = 0; d < dim_; d += kLanes) {
        hn::StoreU(hn::Mul(hn::LoadU(kF32, row + d), scale), kF32, row + d);
      }
      const RowPosition at = scores_.row_position(tile, r);
      store_row(row, dim_, context_.args.dq.data, context_.args.dq.dtype,
                row_offset_q(item_.sequence, context_.gradient.dq, at.query, at.head),
                context_.gradient.dq.dim);
    }
  }

  const TileScores& scores() const { return scores_; }

 private:
  void gather(const TensorView& view, const TensorStrides& strides, std::int64_t dim, KeyRange keys,
              float* rows, std::int64_t row_stride, std::int64_t* offsets) const {
    const std::int64_t count = keys.end - keys.begin;
    row_offsets_k(problem_, f_, item_.sequence, strides, keys.begin, count, head_k_, offsets);
    with_format(view.dtype, [&]<class Format>(Format) {
      const auto* data = static_cast<const typename Format::Raw*>(view.data);
      for (std::int64_t j = 0; j < count; ++j) {
        if (strides.dim == 1) prefetch_row(data + offsets[min_index(j + kPrefetchRows, count - 1)], dim);
        load_row<Format>(data + offsets[j], strides.dim, dim, rows + j * row_stride);
      }
    });
  }

  /// Q and dO of a tile: transposed, and in column panels; lse and delta. Lanes without a row are zeros.
  void pack(const TileRows& tile) const {
    pack_rows(tile, f_.q, problem_.q, dim_, x_.tile.q, x_.q_panels);
    pack_rows(tile, context_.args.dout, context_.gradient.dout, dim_v_, x_.tile.out, x_.dout_panels);
    for (std::int64_t r = 0; r < kM; ++r) {
      x_.lse_log2[r] = kInfinity;
      x_.delta[r] = 0.0f;
      if (r >= tile.num_rows) continue;
      const RowPosition at = scores_.row_position(tile, r);
      const float lse = static_cast<const float*>(
          f_.softmax_lse.data)[lse_offset(problem_, f_.softmax_lse, item_.sequence, at.query, at.head)];
      if (lse != -kInfinity) {
        x_.lse_log2[r] = static_cast<float>(static_cast<double>(lse) * std::numbers::log2e);
      }
      x_.delta[r] = context_.delta[context_.forward.query_row(item_.sequence, at.query, at.head)];
    }
  }

  void pack_rows(const TileRows& tile, const TensorView& view, const TensorStrides& strides, std::int64_t dim,
                 float* transposed, float* panels) const {
    with_format(view.dtype, [&]<class Format>(Format) {
      const auto* data = static_cast<const typename Format::Raw*>(view.data);
      const auto address = [&](std::int64_t r) {
        const RowPosition at = scores_.row_position(tile, r);
        return data + row_offset_q(item_.sequence, strides, at.query, at.head);
      };
      for (std::int64_t r = 0; r < tile.columns; ++r) {
        if (strides.dim == 1) prefetch_row(address(r + kPrefetchRows), dim);
        for (std::int64_t d = 0; d < dim; d += kM) {
          float* to = panels + (d + r) * kM;
          if (r < tile.num_rows) {
            load_row<Format>(address(r) + d * strides.dim, strides.dim, min_index(kM, dim - d), to);
          } else {
            std::memset(to, 0, static_cast<std::size_t>(kM) * sizeof(float));
          }
        }
      }
    });
    for (std::int64_t d = 0; d < dim; d += kM) {
      transpose(panels + d * kM, kM, tile.columns, min_index(kM, dim - d), transposed + d * kM, kM);
    }
  }

  /// S^T becomes P^T, dP^T becomes dS^T.
  void differentiate(const TileRows& tile, std::int64_t count) const {
    const V32 exponent_scale = hn::Set(kF32, rule_.exponent_scale);
    for (std::int64_t c = 0; c < tile.columns; c += kLanes) {
      const V32 lse = hn::Load(kF32, x_.lse_log2 + c), delta = hn::Load(kF32, x_.delta + c);
      for (std::int64_t j = 0; j < count; ++j) {
        float *s = x_.tile.scores + j * kM + c, *ds = x_.dp + j * kM + c;
        const V32 p = exp2_nonpositive(hn::MulSub(hn::Load(kF32, s), exponent_scale, lse));
        const V32 difference = hn::Sub(hn::Load(kF32, ds), delta);
        hn::Store(p, kF32, s);
        // A selection: what meets no weight may be NaN or infinite.
        hn::Store(hn::IfThenZeroElse(hn::Eq(p, hn::Zero(kF32)), hn::Mul(p, difference)), kF32, ds);
      }
    }
  }

  /// Whether every operand of a tile's sums is finite.
  bool finite(const TileRows& tile, KeyRange range) const {
    const auto rows_finite = [&](const float* rows, std::int64_t stride, std::int64_t dim) {
      for (std::int64_t j = range.begin; j < range.end; ++j) {
        if (!all_finite(rows + j * stride, ceil_div(dim, kLanes) * kLanes)) return false;
      }
      return true;
    };
    const auto lanes_finite = [&](const float* transposed, std::int64_t dim) {
      for (std::int64_t d = 0; d < dim; ++d) {
        if (!all_finite(transposed + d * kM, tile.columns)) return false;
      }
      return true;
    };
    return rows_finite(x_.tile.k, x_.tile.k_stride, dim_) && lanes_finite(x_.tile.q, dim_) &&
           lanes_finite(x_.tile.out, dim_v_);
  }

  /// add_sums pair by pair over the keys that each row sees.
  void add_visible(const TileRows& tile, std::int64_t t, KeyRange range, bool keys, bool queries) const {
    const auto add = [&](float* panels, std::int64_t j, std::int64_t dim, float weight,
                         const float* transposed, std::int64_t r) {
      for (std::int64_t d = 0; d < dim; ++d) {
        panels[(d / kM * x_.tile.tile_n_padded + range.begin + j) * kM + d % kM] +=
            weight * transposed[d * kM + r];
      }
    };
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      if (x_.lse_log2[r] == kInfinity) continue;
      for (std::int64_t j = x_.tile.visible_begin[r]; j < x_.tile.visible_end[r]; ++j) {
        const float p = x_.tile.scores[j * kM + r], ds = x_.dp[j * kM + r];
        if (keys) add(x_.dv_panels, j, dim_v_, p, x_.tile.out, r);
        if (keys) add(x_.dk_panels, j, dim_, ds, x_.tile.q, r);
        if (!queries) continue;
        const float* k = x_.tile.k + (range.begin + j) * x_.tile.k_stride;
        for (std::int64_t d = 0; d < dim_; ++d) dq_of(t)[d * kM + r] += ds * k[d];
      }
    }
  }

  void store_key_row(const TensorView& view, const TensorStrides& strides, const float* panels,
                     std::int64_t dim, std::int64_t key, std::int64_t row, float scale) const {
    const V32 factor = hn::Set(kF32, scale);
    for (std::int64_t d = 0; d < dim; d += kLanes) {
      const float* from = panels + (d / kM * x_.tile.tile_n_padded + row) * kM + d % kM;
      hn::StoreU(hn::Mul(hn::LoadU(kF32, from), factor), kF32, x_.tile.line + d);
    }
    store_row(x_.tile.line, dim, view.data, view.dtype,
              row_offset_k(problem_, f_, item_.sequence, strides, key, head_k_), strides.dim);
  }

  const GradientContext& context_;
  const AttentionProblem& problem_;
  const ForwardArguments& f_;
  const WorkItem& item_;
  const std::int64_t head_k_;
  const GradientScratch& x_;
  const ScoreRule rule_;
  const TileScores scores_;
  const std::int64_t dim_, dim_v_;
  std::int64_t first_key_ = 0;    // of those that are gathered
  std::int64_t packed_row_ = -1;  // first row of the tile that is packed
  bool masked_ = false;           // the tile at hand hides keys from some rows
};

}  // namespace

void gradient_item(const GradientContext& context, const GradientItem& item, const GradientScratch& scratch) {
  Gradients g(context, item.rows, item.rows.head_k, scratch);
  if (item.makes_queries) g.clear_queries();
  const std::int64_t together = blocks_together(context.forward.problem, context.tile_n);
  for (std::int64_t begin = item.rows.n_block_min; begin < item.rows.n_block_max; begin += together) {
    const std::int64_t end = min_index(begin + together, item.rows.n_block_max);
    const KeyRange keys{g.block_keys(begin).begin, g.block_keys(end - 1).end};
    g.gather_keys(keys);
    if (item.makes_keys) g.clear_keys();
    for (std::int64_t t = 0; t < g.num_tiles(); ++t) {
      const TileRows tile = g.scores().tile_rows(t);
      for (std::int64_t n_block = begin; n_block < end; ++n_block) {
        const KeyRange range = g.probabilities(tile, g.block_keys(n_block));
        if (range.begin == range.end) continue;
        g.apply_slopes(tile, range.end - range.begin);
        g.add_sums(tile, t, range, item.makes_keys, item.makes_queries);
      }
    }
    if (item.makes_keys) g.store_keys(keys);
  }
  if (!item.makes_queries) return;
  for (std::int64_t t = 0; t < g.num_tiles(); ++t) g.store_queries(g.scores().tile_rows(t), t);
}

void bias_item(const GradientContext& context, const BiasItem& item, const GradientScratch& x) {
  const AttentionProblem& problem = context.forward.problem;
  const TensorView& dbias = context.args.dbias;
  const std::int64_t key_begin = item.n_block * context.tile_n;
  const std::int64_t num_keys = min_index(context.tile_n, dbias.shape[3] - key_begin);
  std::memset(x.bias_sum, 0, static_cast<std::size_t>(num_keys * kM) * sizeof(float));
  const bool one_b = dbias.shape[0] == 1, one_h = dbias.shape[1] == 1;
  for (std::int64_t b = one_b ? 0 : item.bias_b; b < (one_b ? problem.batch : item.bias_b + 1); ++b) {
    WorkItem rows{};
    rows.sequence = sequence_at(problem, context.args.forward, b);
    rows.band = band_of(problem, rows.sequence);
    rows.row_begin = item.row_begin;
    rows.row_end = min_index(item.row_end, rows.sequence.seqlen_q);
    if (rows.row_begin >= rows.row_end) continue;
    for (std::int64_t h = one_h ? 0 : item.bias_h; h < (one_h ? problem.num_heads_q : item.bias_h + 1); ++h) {
      rows.head_k = h;
      Gradients g(context, rows, h / context.group, x);
      const KeyRange keys = g.block_keys(item.n_block);
      if (keys.begin >= keys.end) break;
      g.gather_keys(keys);
      const TileRows tile = g.scores().tile_rows(0);
      const KeyRange range = g.probabilities(tile, keys);
      for (std::int64_t j = range.begin; j < range.end; ++j) {
        for (std::int64_t c = 0; c < tile.columns; c += kLanes) {
          float* sum = x.bias_sum + j * kM + c;
          hn::Store(hn::Add(hn::Load(kF32, sum), hn::Load(kF32, x.dp + (j - range.begin) * kM + c)), kF32,
                    sum);
        }
      }
    }
  }
  for (std::int64_t i = item.row_begin; i < item.row_end; ++i) {
    const std::int64_t first = item.bias_b * dbias.strides[0] + item.bias_h * dbias.strides[1] +
                               i * dbias.strides[2] + key_begin * dbias.strides[3];
    for (std::int64_t j = 0; j < num_keys; ++j) {
      store_float(dbias.data, dbias.dtype, first + j * dbias.strides[3],
                  x.bias_sum[j * kM + i - item.row_begin]);
    }
  }
}

float row_delta(const GradientContext& context, const Sequence& s, std::int64_t i, std::int64_t h,
                float* line) {
  const AttentionProblem& problem = context.forward.problem;
  const std::int64_t dim = problem.head_dim_v, padded = ceil_div(dim, kLanes) * kLanes;
  with_format(problem.q_dtype, [&]<class Format>(Format) {
    const auto load = [&](const TensorView& view, const TensorStrides& strides, float* to) {
      load_row<Format>(static_cast<const typename Format::Raw*>(view.data) + row_offset_q(s, strides, i, h),
                       strides.dim, dim, to);
    };
    load(context.args.dout, context.gradient.dout, line);
    load(context.args.forward.out, problem.out, line + padded);
  });
  V32 sum = hn::Zero(kF32);
  for (std::int64_t d = 0; d < padded; d += kLanes) {
    sum = hn::MulAdd(hn::LoadU(kF32, line + d), hn::LoadU(kF32, line + padded + d), sum);
  }
  float delta = hn::GetLane(hn::SumOfLanes(kF32, sum));
  if (context.gradient.has_dlse) {
    delta -=
        static_cast<const float*>(context.args.dlse.data)[lse_offset(problem, context.args.dlse, s, i, h)];
  }
  return delta;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();
