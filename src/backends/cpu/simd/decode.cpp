// cpu/simd/decode.cpp - attention forward for few query rows: lanes are head dimensions
//
// Problem    one work item: up to 16 packed query rows (decoding: the group of one query) of one (sequence,
//            key head) against a range of key blocks; every layout, dtype, mask and score feature
// Tile       all rows x tile_n keys. Scores: 4 keys x 4 rows of dot-product accumulators, then a
//            transposing sum. Output: 4 rows x 4 vectors of head_dim_v over the keys of the tile
// Pipeline   K and V are read once, where they lie, and promoted in registers; nothing is packed (f8, and
//            rows whose last dimension is not contiguous or not whole vectors, are first gathered as f32,
//            with the same arithmetic). While the scores of a tile are computed, its V rows are prefetched;
//            while its output is, the next tile's K rows are: rows of one head are apart by all heads, or
//            scattered over pages, where the hardware's prefetcher loses them
// Bound      memory: 2 (D + Dv) row-elements read per key for 2 g (D + Dv) FLOP, g query heads per key head
// Masks      per query a contiguous range of keys; a tile that some query sees in part is summed query by
//            query over exactly its range, so hidden V rows (they may hold NaN) are not touched
// Numerics   as prefill.cpp
#include "backends/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/decode.cpp"
#include "hwy/foreach_target.h"
// After foreach_target
#include <type_traits>

#include "backends/cpu/simd/finish-inl.h"
#include "backends/cpu/simd/score-inl.h"
#include "backends/cpu/simd/targets-inl.h"
#include "backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

/// K or V rows of one tile: where they lie, or gathered to f32.
template <class Format>
struct TileRows {
  const typename Format::Raw* data;
  const std::int64_t* offsets;
  const typename Format::Raw* row(std::int64_t j) const { return data + offsets[j]; }
};

#if HWY_TARGET != HWY_SCALAR
/// Adds the 128-bit blocks of x and stores the four sums.
template <class D>
HWY_INLINE void add_blocks(D d, hn::Vec<D> x, float* sums) {
  if constexpr (hn::MaxLanes(D{}) <= 4) {
    hn::StoreU(x, d, sums);
  } else {
    const hn::Half<D> half;
    add_blocks(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), sums);
  }
}
#endif

/// sums[t] = sum of the lanes of x[t], for four vectors.
HWY_INLINE void store_sums_of_four(const V32* x, float* sums) {
#if HWY_TARGET == HWY_SCALAR
  for (int t = 0; t < 4; ++t) sums[t] = hn::GetLane(x[t]);
#else
  const hn::Repartition<std::uint64_t, F32> d64;
  const V32 x01 = hn::Add(hn::InterleaveLower(kF32, x[0], x[1]), hn::InterleaveUpper(kF32, x[0], x[1]));
  const V32 x23 = hn::Add(hn::InterleaveLower(kF32, x[2], x[3]), hn::InterleaveUpper(kF32, x[2], x[3]));
  const auto low = hn::InterleaveLower(d64, hn::BitCast(d64, x01), hn::BitCast(d64, x23));
  const auto high = hn::InterleaveUpper(d64, hn::BitCast(d64, x01), hn::BitCast(d64, x23));
  add_blocks(kF32, hn::Add(hn::BitCast(kF32, low), hn::BitCast(kF32, high)), sums);
#endif
}

class DecodeItem {
 public:
  DecodeItem(const ForwardContext& context, const WorkItem& item, const Scratch& scratch)
      : context_(context),
        problem_(context.problem),
        item_(item),
        scratch_(scratch),
        rule_(score_rule(context, item)),
        group_(problem_.group()),
        num_rows_(item.num_rows()),
        dim_(round_up_to_lanes(problem_.head_dim)),
        dim_v_(round_up_to_lanes(problem_.head_dim_v)) {}

  void run() {
    load_queries();
    const bool whole_vectors = problem_.head_dim == dim_ && problem_.head_dim_v == dim_v_;
    const DType kv = problem_.kv_dtype;
    if (problem_.k.dim != 1 || problem_.v.dim != 1 || !whole_vectors) {
      run_gathered();
    } else if (kv == DType::F32) {
      run_direct<LoadF32>();
    } else if (kv == DType::BF16) {
      run_direct<LoadBf16>();
    } else if (kv == DType::F16) {
      run_direct<LoadF16>();
    } else {
      run_gathered();
    }
    for (std::int64_t r = 0; r < num_rows_; ++r) {
      finish_row(context_, item_, rule_, item_.row_begin + r, scratch_.row_max[r], scratch_.row_sum[r],
                 scratch_.out + r * dim_v_);
    }
  }

 private:
  static std::int64_t round_up_to_lanes(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

  std::int64_t query_of(std::int64_t r) const { return (item_.row_begin + r) / group_; }
  std::int64_t head_of(std::int64_t r) const {
    return item_.head_k * group_ + (item_.row_begin + r) % group_;
  }
  float* scores(std::int64_t r) const { return scratch_.scores + r * scratch_.tile_n_padded; }

  void load_queries() const {
    with_format(problem_.q_dtype, [&]<class Format>(Format) {
      const auto* q = static_cast<const typename Format::Raw*>(context_.args.q.data);
      for (std::int64_t r = 0; r < num_rows_; ++r) {
        load_row<Format>(q + row_offset_q(item_.sequence, problem_.q, query_of(r), head_of(r)),
                         problem_.q.dim, problem_.head_dim, scratch_.q + r * dim_);
      }
    });
    for (std::int64_t r = 0; r < num_rows_; ++r) {
      scratch_.row_max[r] = -kInfinity;
      scratch_.row_sum[r] = 0.0f;
    }
    std::memset(scratch_.out, 0, static_cast<std::size_t>(num_rows_ * dim_v_) * sizeof(float));
  }

  /// Keys [begin, end) of block n_block that some row of the item sees.
  KeyRange block_keys(std::int64_t n_block) const {
    const KeyRange visible =
        visible_keys(item_.band, item_.sequence.seqlen_k, query_of(0), query_of(num_rows_ - 1) + 1);
    return {max_index(visible.begin, n_block * context_.tile_n),
            min_index(visible.end, (n_block + 1) * context_.tile_n)};
  }

  void offsets_of(KeyRange keys, std::int64_t* k_offsets, std::int64_t* v_offsets) const {
    const std::int64_t count = keys.end - keys.begin;
    if (count <= 0) return;
    row_offsets_k(problem_, context_.args, item_.sequence, problem_.k, keys.begin, count, item_.head_k,
                  k_offsets);
    row_offsets_k(problem_, context_.args, item_.sequence, problem_.v, keys.begin, count, item_.head_k,
                  v_offsets);
  }

  template <class Format>
  void run_direct() const {
    using Raw = typename Format::Raw;
    TileRows<Format> k{static_cast<const Raw*>(context_.args.k.data), nullptr};
    TileRows<Format> v{static_cast<const Raw*>(context_.args.v.data), nullptr};
    TileRows<Format> next_k = k;
    for (std::int64_t n_block = item_.n_block_min; n_block < item_.n_block_max; ++n_block) {
      // Two sets of offsets, used in turns: this tile's and the next one's.
      const std::int64_t turn = (n_block & 1) * context_.tile_n, other = context_.tile_n - turn;
      const KeyRange keys = block_keys(n_block);
      if (n_block == item_.n_block_min)
        offsets_of(keys, scratch_.k_offsets + turn, scratch_.v_offsets + turn);
      KeyRange next{0, 0};
      if (n_block + 1 < item_.n_block_max) next = block_keys(n_block + 1);
      offsets_of(next, scratch_.k_offsets + other, scratch_.v_offsets + other);
      k.offsets = scratch_.k_offsets + turn;
      v.offsets = scratch_.v_offsets + turn;
      next_k.offsets = scratch_.k_offsets + other;
      visit<Format>(keys, k, v, next_k, max_index(0, next.end - next.begin));
    }
  }

  void run_gathered() const {
    const std::int64_t n = context_.tile_n;
    for (std::int64_t n_block = item_.n_block_min; n_block < item_.n_block_max; ++n_block) {
      const KeyRange keys = block_keys(n_block);
      offsets_of(keys, scratch_.k_offsets, scratch_.v_offsets);
      with_format(problem_.kv_dtype, [&]<class Format>(Format) {
        const auto* k = static_cast<const typename Format::Raw*>(context_.args.k.data);
        const auto* v = static_cast<const typename Format::Raw*>(context_.args.v.data);
        const std::int64_t last = keys.end - keys.begin - 1;
        for (std::int64_t j = 0; j <= last; ++j) {
          if (problem_.k.dim == 1) {
            prefetch_row(k + scratch_.k_offsets[min_index(j + kPrefetchRows, last)], problem_.head_dim);
          }
          if (problem_.v.dim == 1) {
            prefetch_row(v + scratch_.v_offsets[min_index(j + kPrefetchRows, last)], problem_.head_dim_v);
          }
          load_row<Format>(k + scratch_.k_offsets[j], problem_.k.dim, problem_.head_dim,
                           scratch_.k + j * scratch_.k_stride);
          load_row<Format>(v + scratch_.v_offsets[j], problem_.v.dim, problem_.head_dim_v,
                           scratch_.v + j * scratch_.v_stride);
        }
      });
      for (std::int64_t j = 0; j < n; ++j) {
        scratch_.k_offsets[j] = j * scratch_.k_stride;
        scratch_.v_offsets[j] = j * scratch_.v_stride;
      }
      const TileRows<LoadF32> k{scratch_.k, scratch_.k_offsets}, v{scratch_.v, scratch_.v_offsets};
      visit<LoadF32>(keys, k, v, k, 0);
    }
  }

  template <class Format>
  void visit(KeyRange keys, const TileRows<Format>& k, const TileRows<Format>& v,
             const TileRows<Format>& next_k, std::int64_t num_next) const {
    const std::int64_t num_keys = keys.end - keys.begin;
    if (num_keys <= 0) return;
    for (std::int64_t r = 0; r < num_rows_;) {
      r += for_row_count(num_rows_ - r,
                         [&](auto count) { score_rows<decltype(count)::value>(r, num_keys, k, v); });
    }
    // Rows of one query see the same keys: all rows when every query sees the whole tile, else query by
    // query.
    const bool all_see_all = rows_see(keys, 0, num_rows_);
    for (std::int64_t r = 0; r < num_rows_;) {
      const std::int64_t r_end =
          all_see_all ? num_rows_ : min_index(num_rows_, (query_of(r) + 1) * group_ - item_.row_begin);
      const KeyRange seen = visible_keys(item_.band, item_.sequence.seqlen_k, query_of(r), query_of(r) + 1);
      const std::int64_t begin = max_index(seen.begin - keys.begin, 0);
      const std::int64_t end = min_index(seen.end - keys.begin, num_keys);
      if (begin < end) add_rows<Format>(r, r_end, keys.begin, begin, end, v, next_k, r == 0 ? num_next : 0);
      r = r_end;
    }
  }

  /// Calls f with 4, 2 or 1 rows as a constant, at most `left` of them; returns their number.
  template <class F>
  static HWY_INLINE std::int64_t for_row_count(std::int64_t left, const F& f) {
    if (left >= 4) return f(std::integral_constant<int, 4>{}), 4;
    if (left >= 2) return f(std::integral_constant<int, 2>{}), 2;
    return f(std::integral_constant<int, 1>{}), 1;
  }

  bool rows_see(KeyRange keys, std::int64_t r_begin, std::int64_t r_end) const {
    const KeyRange first =
        visible_keys(item_.band, item_.sequence.seqlen_k, query_of(r_begin), query_of(r_begin) + 1);
    const KeyRange last =
        visible_keys(item_.band, item_.sequence.seqlen_k, query_of(r_end - 1), query_of(r_end - 1) + 1);
    return last.begin <= keys.begin && first.begin <= keys.begin && keys.end <= first.end &&
           keys.end <= last.end;
  }

  /// Raw dot products of kRows rows with every key of the tile.
  template <int kRows, class Format>
  void score_rows(std::int64_t r, std::int64_t num_keys, const TileRows<Format>& k,
                  const TileRows<Format>& v) const {
    const float* HWY_RESTRICT q = scratch_.q + r * dim_;
    for (std::int64_t j = 0; j < num_keys; j += 4) {
      // The last keys stand in for those past the end; their scores land in the padding.
      const typename Format::Raw* rows[4];
      for (std::int64_t t = 0; t < 4; ++t) {
        const std::int64_t key = min_index(j + t, num_keys - 1);
        rows[t] = k.row(key);
        if (r == 0) prefetch_row(v.row(key), dim_v_);
      }
      V32 sum[kRows][4];
      HWY_UNROLL(4)
      for (int a = 0; a < kRows; ++a) {
        HWY_UNROLL(4)
        for (int t = 0; t < 4; ++t) sum[a][t] = hn::Zero(kF32);
      }
      for (std::int64_t d = 0; d < dim_; d += kLanes) {
        V32 key[4];
        HWY_UNROLL(4)
        for (int t = 0; t < 4; ++t) key[t] = Format::load(rows[t] + d);
        HWY_UNROLL(4)
        for (int a = 0; a < kRows; ++a) {
          const V32 query = hn::Load(kF32, q + a * dim_ + d);
          HWY_UNROLL(4)
          for (int t = 0; t < 4; ++t) sum[a][t] = hn::MulAdd(query, key[t], sum[a][t]);
        }
      }
      HWY_UNROLL(4)
      for (int a = 0; a < kRows; ++a) {
        store_sums_of_four(sum[a], scores(r + a) + j);
      }
    }
  }

  /// Softmax and second product of rows [r, r_end) over keys [begin, end) of the tile.
  template <class Format>
  void add_rows(std::int64_t r, std::int64_t r_end, std::int64_t key_begin, std::int64_t begin,
                std::int64_t end, const TileRows<Format>& v, const TileRows<Format>& next_k,
                std::int64_t num_next) const {
    for (std::int64_t a = r; a < r_end; ++a) {
      if (!rule_.direct) finish_scores(a, key_begin, begin, end);
      softmax(a, begin, end);
    }
    while (r < r_end) {
      r += for_row_count(r_end - r, [&](auto count) {
        weigh_values<decltype(count)::value>(r, begin, end, v, next_k, num_next);
      });
      num_next = 0;
    }
  }

  /// Raw dot products of row r become the scores of spec section 2, for keys [begin, end) of the tile.
  void finish_scores(std::int64_t r, std::int64_t key_begin, std::int64_t begin, std::int64_t end) const {
    const ScoreTransform transform(problem_, rule_);
    const std::int64_t i = query_of(r), h = head_of(r), b = item_.sequence.batch_idx;
    const float slope = problem_.has_alibi ? per_head_value(context_.args.alibi_slopes, b, h) : 0.0f;
    const auto position = static_cast<float>(i + item_.sequence.diagonal() - key_begin - begin);
    const V32 minus_position = hn::Sub(hn::Iota(kF32, 0.0f), hn::Set(kF32, position));
    if (problem_.has_bias) {
      const TensorView& bias = context_.args.bias;
      const std::int64_t offset = bias_row_offset(bias, b, h, i) + (key_begin + begin) * bias.strides[3];
      with_format(problem_.bias_dtype, [&]<class Format>(Format) {
        const auto* data = static_cast<const typename Format::Raw*>(bias.data);
        load_row<Format>(data + offset, bias.strides[3], end - begin, scratch_.bias);
      });
    }
    for (std::int64_t j = 0; j < end - begin; j += kLanes) {
      float* s = scores(r) + begin + j;
      V32 score = transform.scale_and_cap(hn::LoadU(kF32, s));
      if (problem_.has_alibi) {
        const V32 distance = hn::Abs(hn::Add(minus_position, hn::Set(kF32, static_cast<float>(j))));
        score = hn::NegMulAdd(hn::Set(kF32, slope), distance, score);
      }
      if (problem_.has_bias) score = hn::Add(score, hn::Load(kF32, scratch_.bias + j));
      store_first(score, end - begin - j, s);
    }
  }

  /// Stores the first `count` lanes (all, if there are not so many).
  static HWY_INLINE void store_first(V32 value, std::int64_t count, float* p) {
    if (count >= kLanes) return hn::StoreU(value, kF32, p);
    hn::BlendedStore(value, hn::FirstN(kF32, static_cast<std::size_t>(count)), kF32, p);
  }

  /// Scores of row r become p; row_max, row_sum and rescale follow.
  void softmax(std::int64_t r, std::int64_t begin, std::int64_t end) const {
    float* s = scores(r);
    const V32 minus_infinity = hn::Set(kF32, -kInfinity);
    const auto load = [&](std::int64_t j) {
      const V32 x = hn::LoadU(kF32, s + j);
      if (end - j >= kLanes) return x;
      return hn::IfThenElse(hn::FirstN(kF32, static_cast<std::size_t>(end - j)), x, minus_infinity);
    };
    V32 top = hn::Set(kF32, scratch_.row_max[r]);
    for (std::int64_t j = begin; j < end; j += kLanes) top = hn::Max(top, load(j));
    const V32 new_max = hn::MaxOfLanes(kF32, top);
    // A row that has seen no key yet has maximum -inf; 0 in its place keeps -inf - (-inf) from occurring.
    const V32 subtrahend = hn::IfThenZeroElse(hn::Eq(new_max, minus_infinity), new_max);
    const V32 exponent_scale = hn::Set(kF32, rule_.exponent_scale);
    V32 sum = hn::Zero(kF32);
    for (std::int64_t j = begin; j < end; j += kLanes) {
      const V32 p = exp2_nonpositive(hn::Mul(hn::Sub(load(j), subtrahend), exponent_scale));
      sum = hn::Add(sum, p);
      store_first(p, end - j, s + j);
    }
    const V32 old_max = hn::Set(kF32, scratch_.row_max[r]);
    const float rescale =
        hn::GetLane(exp2_nonpositive(hn::Mul(hn::Sub(old_max, subtrahend), exponent_scale)));
    scratch_.rescale[r] = rescale;
    scratch_.row_max[r] = hn::GetLane(new_max);
    scratch_.row_sum[r] = scratch_.row_sum[r] * rescale + hn::GetLane(hn::SumOfLanes(kF32, sum));
  }

  /// out = rescale * out + sum of p v, for kRows rows.
  template <int kRows, class Format>
  void weigh_values(std::int64_t r, std::int64_t begin, std::int64_t end, const TileRows<Format>& v,
                    const TileRows<Format>& next_k, std::int64_t num_next) const {
    std::int64_t d = 0;
    for (; d + 4 * kLanes <= dim_v_; d += 4 * kLanes) {
      weigh_chunk<kRows, 4>(r, d, begin, end, v, next_k, d == 0 ? num_next : 0);
    }
    for (; d < dim_v_; d += kLanes) weigh_chunk<kRows, 1>(r, d, begin, end, v, next_k, d == 0 ? num_next : 0);
  }

  template <int kRows, int kVectors, class Format>
  void weigh_chunk(std::int64_t r, std::int64_t d, std::int64_t begin, std::int64_t end,
                   const TileRows<Format>& v, const TileRows<Format>& next_k, std::int64_t num_next) const {
    const float* HWY_RESTRICT p = scores(r);
    const std::int64_t p_stride = scratch_.tile_n_padded;
    V32 sum[kRows][kVectors];
    HWY_UNROLL(4)
    for (int a = 0; a < kRows; ++a) {
      HWY_UNROLL(4)
      for (int t = 0; t < kVectors; ++t) sum[a][t] = hn::Zero(kF32);
    }
    for (std::int64_t j = begin; j < end; ++j) {
      if (j - begin < num_next) prefetch_row(next_k.row(j - begin), dim_);
      const typename Format::Raw* row = v.row(j) + d;
      V32 value[kVectors];
      HWY_UNROLL(4)
      for (int t = 0; t < kVectors; ++t) value[t] = Format::load(row + t * kLanes);
      HWY_UNROLL(4)
      for (int a = 0; a < kRows; ++a) {
        const V32 weight = hn::Set(kF32, p[a * p_stride + j]);
        HWY_UNROLL(4)
        for (int t = 0; t < kVectors; ++t) sum[a][t] = hn::MulAdd(weight, value[t], sum[a][t]);
      }
    }
    HWY_UNROLL(4)
    for (int a = 0; a < kRows; ++a) {
      float* out = scratch_.out + (r + a) * dim_v_ + d;
      const V32 rescale = hn::Set(kF32, scratch_.rescale[r + a]);
      HWY_UNROLL(4)
      for (int t = 0; t < kVectors; ++t) {
        hn::Store(hn::MulAdd(hn::Load(kF32, out + t * kLanes), rescale, sum[a][t]), kF32, out + t * kLanes);
      }
    }
  }

  const ForwardContext& context_;
  const AttentionProblem& problem_;
  const WorkItem& item_;
  const Scratch& scratch_;
  const ScoreRule rule_;
  const std::int64_t group_, num_rows_;
  const std::int64_t dim_, dim_v_;  // rounded up to whole vectors
};

}  // namespace

void decode_item(const ForwardContext& context, const WorkItem& item, const Scratch& scratch) {
  DecodeItem(context, item, scratch).run();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();
