// cpu/simd/merge_row.cpp - joins the split results of one query row
//
// Problem    lse = log(sum over splits of exp(lse_s) [+ exp(sink)]), out = sum of exp(lse_s - lse) out_s
// Numerics   weights in float64; a split with lse = -inf has seen no key and is not read; a single
//            non-empty split without a sink has weight 1: its values come out unchanged
// Sources    spec section 3
#include "backends/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/merge_row.cpp"
#include "hwy/foreach_target.h"
// After foreach_target
#include <cmath>
#include <cstring>

#include "backends/cpu/simd/targets-inl.h"
#include "backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

void merge_row(const ForwardContext& context, const Sequence& s, std::int64_t i, std::int64_t h) {
  const AttentionProblem& problem = context.problem;
  const std::int64_t num_rows = context.num_split_rows, row = context.split_row(s, i, h);
  const std::int64_t num_splits = context.splits_of(s);
  const std::int64_t dim_v = problem.head_dim_v;

  const double sink = problem.has_sinks ? per_head_value(context.args.sinks, 0, h) : -kInfinity;
  double top = sink;
  for (std::int64_t split = 0; split < num_splits; ++split) {
    const double lse = context.split_lse[split * num_rows + row];
    if (!(lse <= top)) top = lse;  // NaN wins
  }
  const double subtrahend = top == -static_cast<double>(kInfinity) ? 0.0 : top;
  double total = std::exp(sink - subtrahend);
  for (std::int64_t split = 0; split < num_splits; ++split) {
    total += std::exp(context.split_lse[split * num_rows + row] - subtrahend);
  }
  // The weights take the place of the LSEs, which are not needed any more; only this row uses them.
  for (std::int64_t split = 0; split < num_splits; ++split) {
    float& lse = context.split_lse[split * num_rows + row];
    lse = lse == -kInfinity ? 0.0f : static_cast<float>(std::exp(lse - subtrahend) / total);
  }

  const std::int64_t out_row = row_offset_q(s, problem.out, i, h);
  for (std::int64_t d = 0; d < dim_v; d += kLanes) {
    const std::int64_t count = min_index(kLanes, dim_v - d);
    HWY_ALIGN float part[kLanes] = {};
    V32 sum = hn::Zero(kF32);
    for (std::int64_t split = 0; split < num_splits; ++split) {
      const float weight = context.split_lse[split * num_rows + row];
      if (weight == 0.0f) continue;  // an empty part is not read
      std::memcpy(part, context.split_out + (split * num_rows + row) * dim_v + d,
                  static_cast<std::size_t>(count) * sizeof(float));
      sum = hn::MulAdd(hn::Set(kF32, weight), hn::Load(kF32, part), sum);
    }
    hn::Store(sum, kF32, part);
    store_row(part, count, context.args.out.data, context.args.out.dtype, out_row + d * problem.out.dim,
              problem.out.dim);
  }
  if (problem.has_lse) {
    const std::int64_t offset = lse_offset(problem, context.args.softmax_lse, s, i, h);
    static_cast<float*>(context.args.softmax_lse.data)[offset] =
        static_cast<float>(subtrahend + std::log(total));
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();
