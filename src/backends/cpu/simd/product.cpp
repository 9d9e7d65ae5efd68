// cpu/simd/product.cpp - the register-blocked matrix product under the prefill path, f32
//
// Problem    C[a][0..columns) (+)= sum over k of A[a][k] * B[k][0..columns), columns <= 64, B and C with
//            row stride 64; A by any two strides, so the same loop computes scores^T = K Q^T and out^T =
//            V^T P^T
// Tile       rows x vectors accumulators in registers: 6 x 4 with 32 registers (24 sums, 4 of B, 1
//            broadcast), 6 x 2 with 16 (12 + 2 + 1); fewer columns take more rows, since 8 independent sums
//            hide an FMA's latency
// Traffic    per k a 6 x 4 block reads 4 vectors of B and broadcasts 6 elements of A for 24 FMAs: 10 loads
//            in the 12 cycles that two FMA units need. B (num_k x 256 bytes, 16 to 32 KiB) stays in L1, A
//            streams from L2
// Measured   Xeon (Sapphire Rapids), one core, AVX-512, num_k 64 to 192: 165 to 172 GFLOP/s, 96 to 100% of
//            its FMA peak; 8 x 3, 12 x 2, 14 x 2, 5 x 5 and 4 x 6 blocks are within 2% of each other
// Sources    the outer-product block of K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
//            Multiplication", 2008, section 6
#include "backends/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/product.cpp"
#include "hwy/foreach_target.h"
// After foreach_target
#include "backends/cpu/simd/targets-inl.h"
#include "backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

struct Operands {
  const float* a;
  std::int64_t row_stride, k_stride, num_k;
  const float* b;
  float* c;
  const float* rescale;
};

template <int kRows, int kVectors>
HWY_INLINE void block(const Operands& o) {
  V32 sum[kRows][kVectors];
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(kF32);
  }
  const float* HWY_RESTRICT a = o.a;
  const float* HWY_RESTRICT b = o.b;
  for (std::int64_t k = 0; k < o.num_k; ++k, a += o.k_stride, b += kSubTileM) {
    V32 b_row[kVectors];
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) b_row[v] = hn::Load(kF32, b + v * kLanes);
    HWY_UNROLL(12)
    for (int r = 0; r < kRows; ++r) {
      const V32 a_element = hn::Set(kF32, a[r * o.row_stride]);
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(a_element, b_row[v], sum[r][v]);
    }
  }
  // The sum of this call is formed first and added once: over many calls the error grows with their number,
  // not with the number of terms.
  HWY_UNROLL(12)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      float* c = o.c + r * kSubTileM + v * kLanes;
      const V32 value = o.rescale == nullptr ? sum[r][v]
                                             : hn::MulAdd(hn::Load(kF32, c),
                                                          hn::Load(kF32, o.rescale + v * kLanes), sum[r][v]);
      hn::Store(value, kF32, c);
    }
  }
}

/// The last rows, fewer than a block.
template <int kRows, int kVectors>
void last_rows(const Operands& o, std::int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return block<kRows, kVectors>(o);
    last_rows<kRows - 1, kVectors>(o, rows);
  }
}

template <int kRows, int kVectors>
void panel(Operands o, std::int64_t rows) {
  for (; rows >= kRows; rows -= kRows) {
    block<kRows, kVectors>(o);
    o.a += kRows * o.row_stride;
    o.c += kRows * kSubTileM;
  }
  last_rows<kRows - 1, kVectors>(o, rows);
}

}  // namespace

void product_f32(const float* a, std::int64_t row_stride, std::int64_t k_stride, std::int64_t rows,
                 std::int64_t num_k, const float* b, std::int64_t columns, float* c, const float* rescale) {
  constexpr std::int64_t kMaxVectors = kRegisters == 32 ? 4 : 2;
  Operands o{a, row_stride, k_stride, num_k, b, c, rescale};
  for (std::int64_t vectors = (columns + kLanes - 1) / kLanes; vectors > 0; vectors -= kMaxVectors) {
    if (vectors >= kMaxVectors) {
      panel<6, kMaxVectors>(o, rows);
    } else if (vectors == 1) {
      panel<12, 1>(o, rows);
    } else if constexpr (kMaxVectors == 4) {
      vectors == 2 ? panel<12, 2>(o, rows) : panel<8, 3>(o, rows);
    }
    const std::int64_t done = kMaxVectors * kLanes;
    o.b += done;
    o.c += done;
    if (o.rescale != nullptr) o.rescale += done;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();
