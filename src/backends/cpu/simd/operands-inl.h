// How the prefill path lays out the operands of its two products. One 32-bit element of an operand holds
// kTerms terms of a sum, so both forms have the same shapes and the same call:
//   F32Operands       one f32; any input format
//   Bf16PairOperands  two bf16, for dot-product instructions; bf16 queries with keys and values that bf16
//                     holds exactly (bf16, f8). P is rounded to bf16 as the operand of the second product,
//                     its sum is not
// Included inside foreach_target, hence the guard that flips.
#if defined(ONEPASS_CPU_SIMD_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SIMD_OPERANDS_INL_H_
#undef ONEPASS_CPU_SIMD_OPERANDS_INL_H_
#else
#define ONEPASS_CPU_SIMD_OPERANDS_INL_H_
#endif

#include <bit>

#include "backends/cpu/simd/kernels.h"
#include "backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

struct F32Operands {
  static constexpr std::int64_t kTerms = 1;
  static Product product(const KernelTable& table) { return table.product_f32; }

  /// A row of Q or K, as elements along head_dim. `rows` is scratch.
  template <class Format>
  static HWY_INLINE void pack_row(const typename Format::Raw* row, std::int64_t dim_stride, std::int64_t n,
                                  float* dst, float* /*rows*/) {
    load_row<Format>(row, dim_stride, n, dst);
  }

  /// kTerms rows of V (the second may be absent: null), as elements along keys. Returns whether all is
  /// finite, if asked.
  template <class Format>
  static HWY_INLINE bool pack_values(const typename Format::Raw* row, const typename Format::Raw* /*second*/,
                                     std::int64_t dim_stride, std::int64_t n, float* dst, float* /*rows*/,
                                     bool check) {
    load_row<Format>(row, dim_stride, n, dst);
    return !check || all_finite(dst, n);
  }

  /// One vector of P^T at key row j (j a multiple of kTerms; p has kTerms vectors).
  static HWY_INLINE void store_weights(const V32* p, float* scores, std::int64_t j) {
    hn::Store(p[0], kF32, scores + j * kSubTileM);
  }

  static float weight(const float* scores, std::int64_t j, std::int64_t r) {
    return scores[j * kSubTileM + r];
  }
  static float value(const float* v, std::int64_t stride, std::int64_t j, std::int64_t d) {
    return v[j * stride + d];
  }
};

#if HWY_TARGET <= HWY_AVX3
struct Bf16PairOperands {
  static constexpr std::int64_t kTerms = 2;
  static Product product(const KernelTable& table) { return table.product_bf16; }

  template <class Format>
  static HWY_INLINE void pack_row(const typename Format::Raw* row, std::int64_t dim_stride, std::int64_t n,
                                  float* dst, float* rows) {
    load_row<Format>(row, dim_stride, n, rows);  // zeros up to whole vectors: an odd n ends in a pair with 0
    auto* pairs = reinterpret_cast<std::uint16_t*>(dst);
    for (std::int64_t d = 0; d < n; d += kLanes) store_bf16(hn::LoadU(kF32, rows + d), pairs + d);
  }

  template <class Format>
  static HWY_INLINE bool pack_values(const typename Format::Raw* row, const typename Format::Raw* second,
                                     std::int64_t dim_stride, std::int64_t n, float* dst, float* rows,
                                     bool check) {
    const std::int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
    load_row<Format>(row, dim_stride, n, rows);
    if (second != nullptr) {
      load_row<Format>(second, dim_stride, n, rows + padded);
    } else {
      std::memset(rows + padded, 0, static_cast<std::size_t>(padded) * sizeof(float));
    }
    for (std::int64_t d = 0; d < n; d += kLanes) {
      hn::StoreU(pair(hn::LoadU(kF32, rows + d), hn::LoadU(kF32, rows + padded + d)), kF32, dst + d);
    }
    return !check || all_finite(rows, 2 * padded);
  }

  static HWY_INLINE void store_weights(const V32* p, float* scores, std::int64_t j) {
    hn::Store(pair(p[0], p[1]), kF32, scores + j / 2 * kSubTileM);
  }

  static float weight(const float* scores, std::int64_t j, std::int64_t r) {
    return half(scores[j / 2 * kSubTileM + r], j);
  }
  static float value(const float* v, std::int64_t stride, std::int64_t j, std::int64_t d) {
    return half(v[j / 2 * stride + d], j);
  }

 private:
  /// Both rounded to nearest even, the first in the lower halves. A NaN may come out as another value; its
  /// row's sum of weights, kept in f32, is NaN too.
  static HWY_INLINE V32 pair(V32 first, V32 second) {
    const hn::Rebind<std::uint32_t, F32> du32;
    const auto round = [&](auto bits) {
      return hn::Add(hn::Add(bits, hn::Set(du32, 0x7fffu)),
                     hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1u)));
    };
    const auto low = hn::ShiftRight<16>(round(hn::BitCast(du32, first)));
    const auto high = hn::And(round(hn::BitCast(du32, second)), hn::Set(du32, 0xffff0000u));
    return hn::BitCast(kF32, hn::Or(low, high));
  }
  static float half(float element, std::int64_t j) {
    const auto bits = std::bit_cast<std::uint32_t>(element);
    return std::bit_cast<float>(j % 2 == 0 ? bits << 16 : bits & 0xffff0000u);
  }
};
#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // ONEPASS_CPU_SIMD_OPERANDS_INL_H_
