#include "cli/matrix_units.h"

#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace onepass::cli {
namespace {

#if defined(__x86_64__)

// VDPBF16PS: each of 16 f32 sums takes two products. Twelve sums hide its latency.
__attribute__((target("avx512f,avx512bf16"))) double avx512_bf16(long iterations, float* sink) {
  const __m512 ones = _mm512_set1_ps(sink[1]);
  const __m512bh a = _mm512_cvtne2ps_pbh(ones, ones);
  constexpr int kSums = 12;
  __m512 sums[kSums];
  // Different starts, or a compiler would see that the sums are equal and keep one.
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(sink[0] * static_cast<float>(i));
  for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (__m512& s : sums) s = _mm512_dpbf16_ps(s, a, a);
  }
  __m512 total = sums[0];
  for (int i = 1; i < kSums; ++i) total = _mm512_add_ps(total, sums[i]);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, total);
  sink[0] += 1e-30f * lanes[0];
  return static_cast<double>(kSums) * 16 * 2 * 2 * static_cast<double>(iterations);
}

// TDPBF16PS: 16 x 16 f32 sums take 32 products each. Four tiles of sums and two pairs of operands, as in a
// product of two by two tiles.
__attribute__((target("amx-tile,amx-bf16"))) double amx_bf16(long iterations, float* sink) {
  struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  const TileConfig config;
  alignas(64) float buffer[16 * 16] = {sink[1]};
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, buffer, 64);
  _tile_loadd(5, buffer, 64);
  _tile_loadd(6, buffer, 64);
  _tile_loadd(7, buffer, 64);
  for (long i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, buffer, 64);
  _tile_release();
  sink[0] += 1e-30f * buffer[0];
  return 4.0 * 16 * 16 * 32 * 2 * static_cast<double>(iterations);
}

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(unsigned leaf, unsigned subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

bool has_avx512_bf16() {
  return __builtin_cpu_supports("avx512f") != 0 && (cpuid(7, 1).eax & (1u << 5)) != 0;
}

// Linux hands out the tile registers on request (Documentation/arch/x86/xstate.rst).
bool has_amx_bf16() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if ((cpuid(7, 0).edx & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

}  // namespace

std::span<const MatrixUnit> bf16_units() {
  static const std::vector<MatrixUnit> units = [] {
    std::vector<MatrixUnit> found;
#if defined(__x86_64__)
    if (has_avx512_bf16()) found.push_back({"AVX-512 BF16", avx512_bf16});
    if (has_amx_bf16()) found.push_back({"AMX tiles", amx_bf16});
#endif
    return found;
  }();
  return units;
}

}  // namespace onepass::cli
