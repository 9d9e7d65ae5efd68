// Text of the wgmma products of a kernel: their operands are as many registers as the tile is wide, so they
// are written for each width. PTX ISA 9.7.15.5 (wgmma.mma_async).
#pragma once

#include <string>
#include <string_view>

#include "onepass/tensor_view.h"

namespace onepass {

/// A static function `name`(d, a, b, accumulate): d[64 x n] = or += A B^T, f32 sums, A and B in shared memory
/// with 16 columns each (K-major), given as matrix descriptors. n: a multiple of 8 up to 256.
std::string wgmma_from_shared(std::string_view name, DType dtype, int n);

/// A static function `name`(d, a, b, accumulate): d[64 x n] = or += A B, A four registers of a thread, B in
/// shared memory with 16 rows (MN-major).
std::string wgmma_from_registers(std::string_view name, DType dtype, int n);

}  // namespace onepass
