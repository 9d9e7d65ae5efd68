// The part of a score's way from dot product to exponent that works on one vector.
// Included inside foreach_target, hence the guard that flips.
#if defined(ONEPASS_CPU_SIMD_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SIMD_SCORE_INL_H_
#undef ONEPASS_CPU_SIMD_SCORE_INL_H_
#else
#define ONEPASS_CPU_SIMD_SCORE_INL_H_
#endif

#include "backends/cpu/simd/kernels.h"
#include "backends/cpu/simd/vector-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

struct ScoreTransform {
  ScoreTransform(const AttentionProblem& problem, const ScoreRule& rule)
      : has_softcap(problem.softcap > 0),
        scale(hn::Set(kF32, rule.scale)),
        softcap(hn::Set(kF32, static_cast<float>(problem.softcap))),
        inverse_softcap(hn::Set(kF32, has_softcap ? static_cast<float>(1.0 / problem.softcap) : 0.0f)) {}

  /// softcap * tanh(scale * dot / softcap), or scale * dot; slope is 1 - tanh^2, or 1.
  HWY_INLINE V32 scale_and_cap(V32 dot, V32& slope) const {
    const V32 score = hn::Mul(dot, scale);
    slope = hn::Set(kF32, 1.0f);
    if (!has_softcap) return score;
    const V32 t = hn::Tanh(kF32, hn::Mul(score, inverse_softcap));
    slope = hn::NegMulAdd(t, t, slope);
    return hn::Mul(softcap, t);
  }
  HWY_INLINE V32 scale_and_cap(V32 dot) const {
    V32 slope;
    return scale_and_cap(dot, slope);
  }

  bool has_softcap;
  V32 scale, softcap, inverse_softcap;
};

inline constexpr std::int64_t kM = kSubTileM;

/// 64 packed rows of an item, or its last ones.
struct TileRows {
  std::int64_t row_begin, num_rows;     // packed rows of the sequence and key head
  std::int64_t query_begin, query_end;  // queries they belong to
  std::int64_t columns;                 // num_rows, rounded up to whole vectors
};

struct RowPosition {
  std::int64_t query, head;
};

/// What scratch.scores, transposed (keys, 64), goes through between the dot product and the exponent.
class TileScores {
 public:
  TileScores(const ForwardContext& context, const WorkItem& item, const Scratch& scratch,
             const ScoreRule& rule)
      : context_(context), problem_(context.problem), item_(item), scratch_(scratch), rule_(rule) {}

  TileRows tile_rows(std::int64_t t) const {
    TileRows tile{};
    const std::int64_t group = problem_.group();
    tile.row_begin = item_.row_begin + t * kM;
    tile.num_rows = min_index(kM, item_.row_end - tile.row_begin);
    tile.query_begin = tile.row_begin / group;
    tile.query_end = (tile.row_begin + tile.num_rows - 1) / group + 1;
    tile.columns = (tile.num_rows + kLanes - 1) / kLanes * kLanes;
    return tile;
  }

  /// Whether queries [begin, end) all see keys [key_begin, key_end).
  bool seen_by_all(std::int64_t begin, std::int64_t end, std::int64_t key_begin, std::int64_t key_end) const {
    const KeyRange first = visible_keys(item_.band, item_.sequence.seqlen_k, begin, begin + 1);
    const KeyRange last = visible_keys(item_.band, item_.sequence.seqlen_k, end - 1, end);
    return last.begin <= key_begin && first.begin <= key_begin && key_end <= first.end && key_end <= last.end;
  }

  /// scores^T becomes the score of spec section 2: scale, softcap, ALiBi, bias.
  /// softcap_slopes, unless null: the derivative of the softcap at each score, (num_keys, 64).
  void finish(const TileRows& tile, std::int64_t key_begin, std::int64_t num_keys,
              float* softcap_slopes) const {
    if (problem_.has_bias) gather_bias(tile, key_begin, num_keys);
    const ScoreTransform transform(problem_, rule_);
    for (std::int64_t r = 0; problem_.has_alibi && r < tile.columns; ++r) {
      const RowPosition row = row_position(tile, r);
      scratch_.slope[r] = per_head_value(context_.args.alibi_slopes, item_.sequence.batch_idx, row.head);
      scratch_.position[r] = static_cast<float>(row.query + item_.sequence.diagonal() - key_begin);
    }
    const float* bias = scratch_.bias + scratch_.tile_n_padded * kM;  // transposed half
    for (std::int64_t c = 0; c < tile.columns; c += kLanes) {
      const V32 slope = problem_.has_alibi ? hn::Load(kF32, scratch_.slope + c) : hn::Zero(kF32);
      const V32 position = problem_.has_alibi ? hn::Load(kF32, scratch_.position + c) : hn::Zero(kF32);
      for (std::int64_t j = 0; j < num_keys; ++j) {
        float* s = scratch_.scores + j * kM + c;
        V32 slope_of_cap;
        V32 score = transform.scale_and_cap(hn::Load(kF32, s), slope_of_cap);
        if (softcap_slopes != nullptr) hn::Store(slope_of_cap, kF32, softcap_slopes + j * kM + c);
        if (problem_.has_alibi) {
          const V32 distance = hn::Abs(hn::Sub(position, hn::Set(kF32, static_cast<float>(j))));
          score = hn::NegMulAdd(slope, distance, score);
        }
        if (problem_.has_bias) score = hn::Add(score, hn::Load(kF32, bias + j * kM + c));
        hn::Store(score, kF32, s);
      }
    }
  }

  /// Query and head of lane r; unused lanes repeat the last row.
  RowPosition row_position(const TileRows& tile, std::int64_t r) const {
    const std::int64_t packed = tile.row_begin + min_index(r, tile.num_rows - 1);
    return {packed / problem_.group(), item_.head_k * problem_.group() + packed % problem_.group()};
  }

  /// The bias of the sub tile, transposed to (num_keys, 64) in the second half of scratch.bias.
  void gather_bias(const TileRows& tile, std::int64_t key_begin, std::int64_t num_keys) const {
    const TensorView& bias = context_.args.bias;
    with_format(problem_.bias_dtype, [&]<class Format>(Format) {
      const auto* data = static_cast<const typename Format::Raw*>(bias.data);
      for (std::int64_t r = 0; r < tile.columns; ++r) {
        const RowPosition row = row_position(tile, r);
        const std::int64_t offset = bias_row_offset(bias, item_.sequence.batch_idx, row.head, row.query);
        load_row<Format>(data + offset + key_begin * bias.strides[3], bias.strides[3], num_keys,
                         scratch_.bias + r * scratch_.tile_n_padded);
      }
    });
    transpose(scratch_.bias, scratch_.tile_n_padded, tile.columns, num_keys,
              scratch_.bias + scratch_.tile_n_padded * kM, kM);
  }

  /// scores^T = -inf where a row does not see a key. A selection, not an addition: NaN from K does not
  /// survive.
  void mask(const TileRows& tile, std::int64_t key_begin, std::int64_t num_keys) const {
    for (std::int64_t r = 0; r < tile.columns; ++r) {
      const std::int64_t query = row_position(tile, r).query;
      const KeyRange keys = visible_keys(item_.band, item_.sequence.seqlen_k, query, query + 1);
      const auto local = [&](std::int64_t key) {
        return static_cast<std::int32_t>(min_index(max_index(key - key_begin, 0), num_keys));
      };
      scratch_.visible_begin[r] = local(keys.begin);
      scratch_.visible_end[r] = local(keys.end);
    }
    const hn::Rebind<std::int32_t, F32> di32;
    for (std::int64_t c = 0; c < tile.columns; c += kLanes) {
      const auto begin = hn::Load(di32, scratch_.visible_begin + c);
      const auto end = hn::Load(di32, scratch_.visible_end + c);
      for (std::int64_t j = 0; j < num_keys; ++j) {
        const auto key = hn::Set(di32, static_cast<std::int32_t>(j));
        const auto hidden = hn::Or(hn::Lt(key, begin), hn::Not(hn::Lt(key, end)));
        float* s = scratch_.scores + j * kM + c;
        hn::Store(hn::IfThenElse(hn::RebindMask(kF32, hidden), hn::Set(kF32, -kInfinity), hn::Load(kF32, s)),
                  kF32, s);
      }
    }
  }

 private:
  const ForwardContext& context_;
  const AttentionProblem& problem_;
  const WorkItem& item_;
  const Scratch& scratch_;
  const ScoreRule& rule_;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // ONEPASS_CPU_SIMD_SCORE_INL_H_
