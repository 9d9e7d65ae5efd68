// Instructions that a warp executes together, from their definitions in the PTX ISA.
#pragma once

#include <cstdint>

namespace onepass::emulator {

/// 9.7.14.5.15: lane l gives the address of row l % 8 of matrix l / 8, 16 bytes. It gets elements 2 (l % 4)
/// and the next of row l / 4 of each matrix; transposed, of column l / 4.
void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address, bool transposed);
/// 9.7.14.5.16: the same addresses; the lane has of each matrix what ldmatrix would give it, transposed.
void stmatrix_x4_trans(std::uint32_t address, const std::uint32_t* r);

/// 9.7.14.5.18: the lane has elements 2 (l % 4) and the next of row l / 4, and gets those of the transposed
/// matrix.
std::uint32_t movmatrix_trans(std::uint32_t pair);

/// 9.7.14.5.8: d += a b, f32 accumulators; ptx/fragment_maps.h says which element each register holds.
void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
void mma_m16n8k16_f16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);

}  // namespace onepass::emulator
