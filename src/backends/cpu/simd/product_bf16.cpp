// cpu/simd/product_bf16.cpp - the register-blocked matrix product on pairs of bf16, AVX-512 BF16
//
// Problem    as product.cpp, but every 32-bit element of A and B is a pair of bf16 and every step adds two
//            products; sums and C are f32
// Tile       6 rows x 4 vectors of accumulators (fewer columns: more rows), one VDPBF16PS each per
//            pair of terms
// Chosen     where AVX-512 BF16 is there and AMX is not (Cooper Lake, Zen 4 and later). CPUs with AMX leave
//            bf16 throughput to it and issue VDPBF16PS at a quarter of the FMA rate:
// Measured   Xeon (Sapphire Rapids), one core: VDPBF16PS 1.38 G/s x 64 FLOP = 88 GFLOP/s, FMA in f32 172
//            GFLOP/s. So there converting bf16 to f32 is twice as fast, and the default
// Numerics   VDPBF16PS adds the two products of a pair one after the other with rounding to nearest even
//            and flushes subnormal operands and results to zero
// Sources    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS
#include "backends/cpu/simd/product_bf16.h"

// Highway 1.0 has no target with these instructions. The code is compiled with a target attribute rather
// than with compiler flags, so that nothing this file shares with others (inline functions) is built for
// them.
#if defined(__x86_64__) && (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 10))
#define ONEPASS_HAS_AVX512_BF16 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define ONEPASS_HAS_AVX512_BF16 0
#endif

namespace onepass::cpu {

#if ONEPASS_HAS_AVX512_BF16
namespace {

#define ONEPASS_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#if defined(__clang__)
#define ONEPASS_UNROLL _Pragma("unroll")
#else
#define ONEPASS_UNROLL _Pragma("GCC unroll 12")
#endif

constexpr std::int64_t kRowLength = 64;  // of B and C

struct Operands {
  const float* a;
  std::int64_t row_stride, k_stride, num_k;
  const float* b;
  float* c;
  const float* rescale;
};

template <int kRows, int kVectors>
ONEPASS_AVX512_BF16 void block(const Operands& o) {
  __m512 sum[kRows][kVectors];
  ONEPASS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ONEPASS_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const float* a = o.a;
  const float* b = o.b;
  for (std::int64_t k = 0; k < o.num_k; ++k, a += o.k_stride, b += kRowLength) {
    __m512bh b_row[kVectors];
    ONEPASS_UNROLL
    for (int v = 0; v < kVectors; ++v) b_row[v] = __m512bh(_mm512_load_ps(b + v * 16));
    ONEPASS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto a_pair = __m512bh(_mm512_set1_ps(a[r * o.row_stride]));
      ONEPASS_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], a_pair, b_row[v]);
    }
  }
  ONEPASS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ONEPASS_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* c = o.c + r * kRowLength + v * 16;
      const __m512 value =
          o.rescale == nullptr
              ? sum[r][v]
              : _mm512_fmadd_ps(_mm512_load_ps(c), _mm512_load_ps(o.rescale + v * 16), sum[r][v]);
      _mm512_store_ps(c, value);
    }
  }
}

template <int kRows, int kVectors>
ONEPASS_AVX512_BF16 void last_rows(const Operands& o, std::int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return block<kRows, kVectors>(o);
    last_rows<kRows - 1, kVectors>(o, rows);
  }
}

template <int kRows, int kVectors>
ONEPASS_AVX512_BF16 void panel(Operands o, std::int64_t rows) {
  for (; rows >= kRows; rows -= kRows) {
    block<kRows, kVectors>(o);
    o.a += kRows * o.row_stride;
    o.c += kRows * kRowLength;
  }
  last_rows<kRows - 1, kVectors>(o, rows);
}

struct CpuFeatures {
  bool avx512_bf16, amx_bf16;
};

CpuFeatures cpu_features() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  CpuFeatures features{};
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) features.avx512_bf16 = (eax >> 5 & 1) != 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) features.amx_bf16 = (edx >> 22 & 1) != 0;
  return features;
}

}  // namespace

void product_bf16(const float* a, std::int64_t row_stride, std::int64_t k_stride, std::int64_t rows,
                  std::int64_t num_k, const float* b, std::int64_t columns, float* c, const float* rescale) {
  const Operands o{a, row_stride, k_stride, num_k, b, c, rescale};
  switch ((columns + 15) / 16) {
    case 4: return panel<6, 4>(o, rows);
    case 3: return panel<8, 3>(o, rows);
    case 2: return panel<12, 2>(o, rows);
    default: return panel<12, 1>(o, rows);
  }
}

bool has_product_bf16() { return cpu_features().avx512_bf16; }
bool prefers_product_bf16() { return cpu_features().avx512_bf16 && !cpu_features().amx_bf16; }

#else

void product_bf16(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const float*,
                  std::int64_t, float*, const float*) {}
bool has_product_bf16() { return false; }
bool prefers_product_bf16() { return false; }

#endif

}  // namespace onepass::cpu
