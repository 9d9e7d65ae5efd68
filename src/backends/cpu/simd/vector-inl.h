// Vector helpers of the SIMD backend, compiled once per instruction set: conversions, exp2, rows,
// transposition. Included inside foreach_target, hence the guard that flips.
#if defined(ONEPASS_CPU_SIMD_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SIMD_VECTOR_INL_H_
#undef ONEPASS_CPU_SIMD_VECTOR_INL_H_
#else
#define ONEPASS_CPU_SIMD_VECTOR_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "onepass/tensor_view.h"
#include "support/float_types.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;
inline constexpr F32 kF32{};
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(F32{}));
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

/// Element formats: Raw is the stored type, load() promotes kLanes consecutive elements to f32.
struct LoadF32 {
  using Raw = float;
  static HWY_INLINE V32 load(const Raw* p) { return hn::LoadU(kF32, p); }
};

struct LoadBf16 {
  using Raw = std::uint16_t;
  static HWY_INLINE V32 load(const Raw* p) {
    const hn::Rebind<std::uint16_t, F32> du16;
    const hn::Rebind<std::uint32_t, F32> du32;
    return hn::BitCast(kF32, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, p))));
  }
};

struct LoadF16 {
  using Raw = std::uint16_t;
  static HWY_INLINE V32 promote(hn::Vec<hn::Rebind<std::uint16_t, F32>> bits) {
#if HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM
    return hn::PromoteTo(kF32, hn::BitCast(hn::Rebind<hwy::float16_t, F32>{}, bits));
#else
    // Without a conversion instruction: exponent and mantissa move into place, multiplying by 2^112 changes
    // the bias and normalises subnormals; infinity and NaN then get the largest exponent.
    const hn::Rebind<std::uint32_t, F32> du32;
    const auto wide = hn::PromoteTo(du32, bits);
    const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(du32, 0x7fffu)));
    const auto value = hn::Mul(hn::BitCast(kF32, magnitude), hn::Set(kF32, 0x1p112f));
    const auto special = hn::Ge(value, hn::Set(kF32, 65536.0f));
    const auto finished = hn::Or(hn::BitCast(du32, value), hn::IfThenElseZero(hn::RebindMask(du32, special),
                                                                              hn::Set(du32, 0x7f800000u)));
    return hn::BitCast(kF32, hn::Or(finished, hn::ShiftLeft<31>(hn::ShiftRight<15>(wide))));
#endif
  }
  static HWY_INLINE V32 load(const Raw* p) { return promote(hn::LoadU(hn::Rebind<std::uint16_t, F32>{}, p)); }
};

struct LoadF8E5M2 {
  using Raw = std::uint8_t;
  static HWY_INLINE V32 load(const Raw* p) {
    const hn::Rebind<std::uint16_t, F32> du16;
    const auto wide = hn::PromoteTo(du16, hn::LoadU(hn::Rebind<std::uint8_t, F32>{}, p));
    return LoadF16::promote(hn::ShiftLeft<8>(wide));  // e5m2 is the upper half of an f16
  }
};

struct LoadF8E4M3 {
  using Raw = std::uint8_t;
  static HWY_INLINE V32 load(const Raw* p) {
    const hn::Rebind<std::uint16_t, F32> du16;
    const hn::Rebind<std::uint32_t, F32> du32;
    const auto wide = hn::PromoteTo(du16, hn::LoadU(hn::Rebind<std::uint8_t, F32>{}, p));
    // As an f16 the bits read 2^-8 of the value (bias 15 instead of 7), subnormals included; all ones is NaN.
    const auto magnitude = hn::And(wide, hn::Set(du16, std::uint16_t{0x7f}));
    const auto sign = hn::ShiftLeft<8>(hn::And(wide, hn::Set(du16, std::uint16_t{0x80})));
    const V32 value =
        hn::Mul(LoadF16::promote(hn::Or(hn::ShiftLeft<7>(magnitude), sign)), hn::Set(kF32, 256.0f));
    const auto is_nan = hn::Eq(hn::PromoteTo(du32, magnitude), hn::Set(du32, 0x7fu));
    return hn::IfThenElse(hn::RebindMask(kF32, is_nan),
                          hn::Set(kF32, std::numeric_limits<float>::quiet_NaN()), value);
  }
};

struct LoadI8 {
  using Raw = std::int8_t;
  static HWY_INLINE V32 load(const Raw* p) {
    const hn::Rebind<std::int32_t, F32> di32;
    return hn::ConvertTo(kF32, hn::PromoteTo(di32, hn::LoadU(hn::Rebind<std::int8_t, F32>{}, p)));
  }
};

/// Calls f(format) for the element format of `dtype`.
template <class F>
HWY_INLINE void with_format(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32: return f(LoadF32{});
    case DType::BF16: return f(LoadBf16{});
    case DType::F16: return f(LoadF16{});
    case DType::F8E4M3: return f(LoadF8E4M3{});
    case DType::F8E5M2: return f(LoadF8E5M2{});
    case DType::I8: return f(LoadI8{});
    case DType::I32: return;
  }
}

/// How many rows ahead a loop over rows asks for them. Rows of one head are apart by all heads, or
/// scattered over pages: the hardware's prefetcher does not find them.
inline constexpr std::int64_t kPrefetchRows = 8;

/// Asks for the n elements of a contiguous row in L2.
template <class Raw>
HWY_INLINE void prefetch_row(const Raw* row, std::int64_t n) {
  constexpr std::int64_t kLineBytes = 64;
  const auto* bytes = reinterpret_cast<const char*>(row);
  for (std::int64_t t = 0; t < n * static_cast<std::int64_t>(sizeof(Raw)); t += kLineBytes) {
    __builtin_prefetch(bytes + t, 0, 2);
  }
}

/// dst[0..n) = row elements as f32, then zeros up to a multiple of kLanes.
template <class Format>
inline void load_row(const typename Format::Raw* row, std::int64_t dim_stride, std::int64_t n, float* dst) {
  std::int64_t d = 0;
  if (dim_stride == 1) {
    for (; d + kLanes <= n; d += kLanes) hn::StoreU(Format::load(row + d), kF32, dst + d);
  }
  for (; d < n; d += kLanes) {
    typename Format::Raw buffer[static_cast<std::size_t>(kLanes)] = {};
    for (std::int64_t t = 0; t < kLanes && d + t < n; ++t) buffer[t] = row[(d + t) * dim_stride];
    hn::StoreU(Format::load(buffer), kF32, dst + d);
  }
}

/// row[0..n) *= factor, and what lies behind up to a multiple of kLanes.
HWY_INLINE void multiply_row(float* row, std::int64_t n, float factor) {
  const V32 f = hn::Set(kF32, factor);
  for (std::int64_t d = 0; d < n; d += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(kF32, row + d), f), kF32, row + d);
  }
}

/// Round to nearest even; NaN stays NaN.
HWY_INLINE void store_bf16(V32 value, std::uint16_t* dst) {
  const hn::Rebind<std::uint32_t, F32> du32;
  const hn::Rebind<std::int32_t, F32> di32;
  const auto bits = hn::BitCast(du32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du32, 0x7fffu)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du32, 0x40u));
  const auto result = hn::IfThenElse(hn::RebindMask(du32, hn::IsNaN(value)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(hn::Rebind<std::uint16_t, F32>{}, hn::BitCast(di32, result)),
             hn::Rebind<std::uint16_t, F32>{}, dst);
}

/// Stores n f32 values as `dtype` (f32, f16, bf16) with any stride; src holds a multiple of kLanes values.
inline void store_row(const float* src, std::int64_t n, void* base, DType dtype, std::int64_t offset,
                      std::int64_t dim_stride) {
  std::int64_t d = 0;
  if (dim_stride == 1 && dtype == DType::F32) {
    std::memcpy(static_cast<float*>(base) + offset, src, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  if (dim_stride == 1 && dtype == DType::BF16) {
    auto* dst = static_cast<std::uint16_t*>(base) + offset;
    for (; d + kLanes <= n; d += kLanes) store_bf16(hn::LoadU(kF32, src + d), dst + d);
  }
#if HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM
  if (dim_stride == 1 && dtype == DType::F16) {
    auto* dst = static_cast<hwy::float16_t*>(base) + offset;
    const hn::Rebind<hwy::float16_t, F32> df16;
    for (; d + kLanes <= n; d += kLanes)
      hn::StoreU(hn::DemoteTo(df16, hn::LoadU(kF32, src + d)), df16, dst + d);
  }
#endif
  for (; d < n; ++d) store_float(base, dtype, offset + d * dim_stride, src[d]);
}

/// False if any of the n values (a multiple of kLanes) is NaN or infinite.
HWY_INLINE bool all_finite(const float* values, std::int64_t n) {
  V32 difference = hn::Zero(kF32);  // x - x is 0, or NaN for infinity and NaN
  for (std::int64_t d = 0; d < n; d += kLanes) {
    const V32 x = hn::LoadU(kF32, values + d);
    difference = hn::Add(difference, hn::Sub(x, x));
  }
  return hn::AllTrue(kF32, hn::Eq(difference, hn::Zero(kF32)));
}

/// 2^x for x <= 0, relative error below 1.5e-7: exactly 1 at 0, exactly 0 below -126 and at -inf, NaN for
/// NaN. Degree-5 minimax polynomials with constant term 1.
HWY_INLINE V32 exp2_nonpositive(V32 x) {
#if HWY_TARGET <= HWY_AVX3
  // f = x - floor(x) in [0, 1), then p(f) * 2^floor(x), each one instruction.
  const V32 f{_mm512_reduce_ps(x.raw, 1)};
  V32 p = hn::Set(kF32, 0.00186713039875030518f);
  p = hn::MulAdd(p, f, hn::Set(kF32, 0.00901702977716922760f));
  p = hn::MulAdd(p, f, hn::Set(kF32, 0.05579991266131401062f));
  p = hn::MulAdd(p, f, hn::Set(kF32, 0.24016444385051727295f));
  p = hn::MulAdd(p, f, hn::Set(kF32, 0.69315129518508911133f));
  p = hn::MulAdd(p, f, hn::Set(kF32, 1.0f));
  // The mask (not below -126, so true for NaN) keeps out subnormal results: they would slow the second
  // product.
  const __mmask16 kept = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return V32{_mm512_maskz_scalef_ps(kept, p.raw, x.raw)};
#else
  // Adding 1.5 * 2^23 rounds x to an integer in the low bits; the extra 127 is the exponent's bias.
  const hn::Rebind<std::int32_t, F32> di32;
  const V32 magic = hn::Set(kF32, 12582912.0f + 127.0f);
  const V32 shifted = hn::Add(x, magic);
  const V32 f = hn::Sub(x, hn::Sub(shifted, magic));  // in [-0.5, 0.5]
  const V32 power = hn::BitCast(kF32, hn::ShiftLeft<23>(hn::BitCast(di32, shifted)));
  V32 p = hn::Set(kF32, 0.00132647273130714893f);
  p = hn::MulAdd(p, f, hn::Set(kF32, 0.00967151299118995667f));
  p = hn::MulAdd(p, f, hn::Set(kF32, 0.05550733581185340881f));
  p = hn::MulAdd(p, f, hn::Set(kF32, 0.24022242426872253418f));
  p = hn::MulAdd(p, f, hn::Set(kF32, 0.69314700365066528320f));
  p = hn::MulAdd(p, f, hn::Set(kF32, 1.0f));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(kF32, -126.0f)), hn::Mul(p, power));
#endif
}

#if HWY_TARGET != HWY_SCALAR
/// Stores the 128-bit blocks of x at dst, dst + block_stride, ...
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> x, float* dst, std::int64_t block_stride) {
  if constexpr (hn::MaxLanes(D{}) <= 4) {
    hn::StoreU(x, d, dst);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, x), dst, block_stride);
    store_blocks(half, hn::UpperHalf(half, x),
                 dst + static_cast<std::int64_t>(hn::MaxLanes(half)) / 4 * block_stride, block_stride);
  }
}
#endif

/// dst[c * dst_stride + r] = src[r * src_stride + c]. Reads and writes whole blocks of 4 rows and kLanes
/// columns: the buffers have the room.
inline void transpose(const float* src, std::int64_t src_stride, std::int64_t num_rows, std::int64_t num_cols,
                      float* dst, std::int64_t dst_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t c = 0; c < num_cols; ++c) {
    for (std::int64_t r = 0; r < num_rows; ++r) dst[c * dst_stride + r] = src[r * src_stride + c];
  }
#else
  const hn::Repartition<std::uint64_t, F32> d64;
  for (std::int64_t c = 0; c < num_cols; c += kLanes) {
    for (std::int64_t r = 0; r < num_rows; r += 4) {
      const float* s = src + r * src_stride + c;
      const V32 row0 = hn::LoadU(kF32, s);
      const V32 row1 = hn::LoadU(kF32, s + src_stride);
      const V32 row2 = hn::LoadU(kF32, s + 2 * src_stride);
      const V32 row3 = hn::LoadU(kF32, s + 3 * src_stride);
      // Per 128-bit block a 4 x 4 transposition; block b holds columns 4 b to 4 b + 3.
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(kF32, row0, row1));   // 00 10 01 11
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(kF32, row2, row3));   // 20 30 21 31
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(kF32, row0, row1));  // 02 12 03 13
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(kF32, row2, row3));
      float* t = dst + c * dst_stride + r;
      const std::int64_t step = 4 * dst_stride;
      store_blocks(kF32, hn::BitCast(kF32, hn::InterleaveLower(d64, low01, low23)), t, step);
      store_blocks(kF32, hn::BitCast(kF32, hn::InterleaveUpper(d64, low01, low23)), t + dst_stride, step);
      store_blocks(kF32, hn::BitCast(kF32, hn::InterleaveLower(d64, high01, high23)), t + 2 * dst_stride,
                   step);
      store_blocks(kF32, hn::BitCast(kF32, hn::InterleaveUpper(d64, high01, high23)), t + 3 * dst_stride,
                   step);
    }
  }
#endif
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // ONEPASS_CPU_SIMD_VECTOR_INL_H_
