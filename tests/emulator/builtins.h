// What the device compiler knows without an include, for g++ and clang++: generated kernels begin with it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/emulator/block.h"

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace onepass::emulator {

struct Index3 {
  unsigned x;  // grids and blocks have one dimension
};

}  // namespace onepass::emulator

#define threadIdx (::onepass::emulator::Index3{::onepass::emulator::thread_index()})
#define blockIdx (::onepass::emulator::Index3{::onepass::emulator::block_index()})
#define gridDim (::onepass::emulator::Index3{::onepass::emulator::grid_size()})

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }

inline void __trap() { onepass::emulator::fault("trap"); }

// Blocks run one after another, and threads until they wait.
inline unsigned long long atomicCAS(unsigned long long* word, unsigned long long expected,
                                    unsigned long long value) {
  const unsigned long long before = *word;
  if (before == expected) *word = value;
  return before;
}
inline unsigned atomicAdd(unsigned* word, unsigned value) {
  const unsigned before = *word;
  *word += value;
  return before;
}

inline void __syncthreads() { onepass::emulator::sync_block(); }
inline void __syncwarp() { onepass::emulator::sync_warp(); }

/// Only the mask of all lanes.
float __shfl_xor_sync(unsigned mask, float value, int lane_mask);
unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lane_mask);
int __shfl_sync(unsigned mask, int value, int source_lane);
float __shfl_sync(unsigned mask, float value, int source_lane);
bool __any_sync(unsigned mask, bool value);
unsigned __ballot_sync(unsigned mask, bool value);
