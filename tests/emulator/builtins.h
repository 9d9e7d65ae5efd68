// What the device compiler knows without an include, for g++ and clang++: generated kernels begin with it.
#pragma once

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

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace onepass::emulator {

struct Index3 {
  unsigned x;  // grids and blocks have one dimension
};

}  // namespace onepass::emulator

#define threadIdx (::onepass::emulator::Index3{::onepass::emulator::thread_index()})
#define blockIdx (::onepass::emulator::Index3{::onepass::emulator::block_index()})

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

inline void __syncthreads() { onepass::emulator::sync_block(); }
inline void __syncwarp() { onepass::emulator::sync_warp(); }

/// Only the mask of all lanes.
float __shfl_xor_sync(unsigned mask, float value, int lane_mask);
bool __any_sync(unsigned mask, bool value);
