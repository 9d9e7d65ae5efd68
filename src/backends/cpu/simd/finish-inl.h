// The end of a row, common to both paths: from (sum of p v, sum of p, maximum) to O and LSE, or to a
// split's part. Included inside foreach_target, hence the guard that flips.
#if defined(ONEPASS_CPU_SIMD_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SIMD_FINISH_INL_H_
#undef ONEPASS_CPU_SIMD_FINISH_INL_H_
#else
#define ONEPASS_CPU_SIMD_FINISH_INL_H_
#endif

#include <cmath>

#include "backends/cpu/simd/kernels.h"
#include "backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

/// values[0..n) /= divisor, correctly rounded in all but rare cases: a reciprocal and one correction step,
/// a tenth of the cost of dividing. O of uniform attention over equal V is therefore exact.
HWY_INLINE void divide_row(float* values, std::int64_t n, float divisor) {
  const V32 d = hn::Set(kF32, divisor);
  const V32 reciprocal = hn::Set(kF32, 1.0f / divisor);
  for (std::int64_t t = 0; t < n; t += kLanes) {
    const V32 x = hn::LoadU(kF32, values + t);
    const V32 q = hn::Mul(x, reciprocal);
    const V32 remainder = hn::NegMulAdd(q, d, x);
    const V32 corrected = hn::MulAdd(remainder, reciprocal, q);
    // An infinite or NaN quotient has a NaN remainder; it is right as it is.
    hn::StoreU(hn::IfThenElse(hn::IsNaN(remainder), q, corrected), kF32, values + t);
  }
}

/// The denominator of a row and its LSE, with the sink (-inf: none) joined.
struct RowEnd {
  double divisor;  // of sum(p v); infinity for a row without keys
  double lse;
};

/// `need_lse` = false leaves lse at 0: a logarithm per row shows in short sequences.
HWY_INLINE RowEnd end_row(double max_score, double sum, double sink, bool need_lse) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (sum == 0.0) return {kInf, sink};  // no visible key
  if (sink == -kInf) return {sum, need_lse ? max_score + std::log(sum) : 0.0};
  const double top = max_score > sink ? max_score : sink;
  const double total = sum * std::exp(max_score - top) + std::exp(sink - top);
  // sum(p v) is relative to max_score
  return {total * std::exp(top - max_score), need_lse ? top + std::log(total) : 0.0};
}

/// Ends packed row `row` of the item: `out` (head_dim_v, padded) is sum(p v) relative to `row_max` (in
/// units of rule.lse_scale), `row_sum` the sum of p. Writes O and LSE, or this split's normalised part of
/// them.
inline void finish_row(const ForwardContext& context, const WorkItem& item, const ScoreRule& rule,
                       std::int64_t row, float row_max, float row_sum, float* out) {
  const AttentionProblem& problem = context.problem;
  const std::int64_t group = problem.group();
  const std::int64_t i = row / group;
  const std::int64_t h = item.head_k * group + row % group;
  const std::int64_t dim_v = problem.head_dim_v;
  const bool is_part = item.num_splits > 1;

  const bool use_sink = problem.has_sinks && !is_part;  // a sink joins once, when the parts are merged
  const float sink = use_sink ? per_head_value(context.args.sinks, 0, h) : -kInfinity;
  const RowEnd end =
      end_row(static_cast<double>(row_max) * rule.lse_scale, row_sum, sink, is_part || problem.has_lse);
  double divisor = end.divisor;
  if (problem.has_v_descale && !problem.v_descale_per_page) {
    divisor /= per_head_value(context.args.v_descale, item.sequence.batch_idx, item.head_k);
  }
  if (row_sum == 0.0f) {
    std::memset(out, 0, static_cast<std::size_t>(dim_v) * sizeof(float));
  } else {
    divide_row(out, dim_v, static_cast<float>(divisor));
  }

  if (is_part) {
    const std::int64_t part_row =
        item.split_idx * context.num_split_rows + context.split_row(item.sequence, i, h);
    context.split_lse[part_row] = static_cast<float>(end.lse);
    std::memcpy(context.split_out + part_row * dim_v, out, static_cast<std::size_t>(dim_v) * sizeof(float));
    return;
  }
  store_row(out, dim_v, context.args.out.data, context.args.out.dtype,
            row_offset_q(item.sequence, problem.out, i, h), problem.out.dim);
  if (problem.has_lse) {
    const std::int64_t offset = lse_offset(problem, context.args.softmax_lse, item.sequence, i, h);
    static_cast<float*>(context.args.softmax_lse.data)[offset] = static_cast<float>(end.lse);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // ONEPASS_CPU_SIMD_FINISH_INL_H_
