// Text of the wgmma products of a kernel: their operands are as many registers as the tile is wide, so they
// are written for each width. PTX ISA 9.7.15.5 (wgmma.mma_async).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "onepass/tensor_view.h"

namespace onepass {

/// High word of every matrix descriptor: 1024 bytes from eight rows to the next eight, 128-byte swizzle.
constexpr unsigned kDescriptorHigh = (1u << 30) | (1024 >> 4);

/// What a step adds to the low words of the descriptors: 16-byte units of shared memory.
struct StepOffsets {
  int a, b;
};

/// What lies in a row of B in shared memory: columns of its product, or a row of B (MN-major).
enum class OperandB { Columns, Rows };

/// A static function `name`(d, a, b): d[64 x n] = A B^T or, of a B in rows, A B; f32 sums, A (K-major) and B
/// in shared memory, given as low words of matrix descriptors; a step multiplies 16 columns of A. n: a
/// multiple of 8 up to 256.
std::string wgmma_from_shared(std::string_view name, DType dtype, int n,
                              const std::vector<StepOffsets>& steps, OperandB operand_b = OperandB::Columns);

/// A static function `name`(d, a, b, accumulate): d[64 x n] = or += A B; A in four registers of a thread for
/// each step, B in shared memory with 16 rows a step (MN-major), b_offset units apart.
std::string wgmma_from_registers(std::string_view name, DType dtype, int n, int steps, int b_offset);

}  // namespace onepass
