// fragment_maps.h - which element of a tile each register of mma m16n8k16 holds, and which row each lane of
// ldmatrix reads. Read by g++ and by NVRTC alike (no include). PTX ISA 9.7.14.5 (mma, ldmatrix).
//
// Places are in elements, relative to the 16 x 16, 16 x 8 or 8 x 16 tile at hand; lane is 0 to 31. A 32-bit
// register of an operand holds two 16-bit elements, the first in its low half. tests/layout_oracle checks
// every map against CuTe's layouts, tests/unit/kernels what follows from them.
#pragma once

#include "common/host_device.h"

namespace onepass::cuda {

struct TilePlace {
  int row, column;
};

/// Accumulator (16 x 8, f32), element 0 to 3. The four lanes of a quad share a row.
ONEPASS_HOST_DEVICE constexpr TilePlace accumulator_place(int lane, int element) {
  return {lane / 4 + 8 * (element / 2), 2 * (lane % 4) + element % 2};
}

/// Operand A (16 x 16, row is m, column is k), register 0 to 3: its first element; the second is the next
/// column.
ONEPASS_HOST_DEVICE constexpr TilePlace operand_a_place(int lane, int reg) {
  return {lane / 4 + 8 * (reg % 2), 2 * (lane % 4) + 8 * (reg / 2)};
}

/// Operand B (16 x 8, row is k, column is n), register 0 to 1: its first element; the second is the next row.
ONEPASS_HOST_DEVICE constexpr TilePlace operand_b_place(int lane, int reg) {
  return {2 * (lane % 4) + 8 * reg, lane / 4};
}

/// Two neighbours in the accumulators of two n8 tiles side by side.
struct AccumulatorPair {
  int tile, element;  // element and element + 1 of that tile
};

/// The accumulators of n8 tiles 2k and 2k + 1, packed to 16 bits, are operand A of k16 step k: this pair is
/// its register.
ONEPASS_HOST_DEVICE constexpr AccumulatorPair operand_a_from_accumulators(int reg) {
  return {reg / 2, 2 * (reg % 2)};
}

/// Row and first column whose address a lane gives to ldmatrix_x4, so that the four registers are operand A
/// of the 16 x 16 tile in shared memory.
ONEPASS_HOST_DEVICE constexpr TilePlace ldmatrix_a_place(int lane) { return {lane % 16, 8 * (lane / 16)}; }

/// The same for operand B of two n8 tiles, stored as 16 rows of n and 16 columns of k (K in Q K^T): registers
/// 0, 1 are B of the first, registers 2, 3 of the second.
ONEPASS_HOST_DEVICE constexpr TilePlace ldmatrix_b_place(int lane) {
  return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)};
}

/// The same for ldmatrix_x4_trans and B stored as 16 rows of k and 16 columns of n (V in P V).
ONEPASS_HOST_DEVICE constexpr TilePlace ldmatrix_b_trans_place(int lane) {
  return {lane % 16, 8 * (lane / 16)};
}

/// The same for ldmatrix_x4_trans and operand A stored transposed, as 16 rows of k and 16 columns of m (V in
/// V^T P^T).
ONEPASS_HOST_DEVICE constexpr TilePlace ldmatrix_a_trans_place(int lane) {
  return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)};
}

}  // namespace onepass::cuda
