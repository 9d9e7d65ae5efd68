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

  /// softcap * tanh(scale * dot / softcap), or scale * dot.
  HWY_INLINE V32 scale_and_cap(V32 dot) const {
    const V32 score = hn::Mul(dot, scale);
    if (!has_softcap) return score;
    return hn::Mul(softcap, hn::Tanh(kF32, hn::Mul(score, inverse_softcap)));
  }

  bool has_softcap;
  V32 scale, softcap, inverse_softcap;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // ONEPASS_CPU_SIMD_SCORE_INL_H_
