// kernels/ptx/ldmatrix.cuh on the emulator. A shared address is an offset from the first byte.
#pragma once

#include <cstring>

#include "ptx/types.cuh"
#include "tests/emulator/builtins.h"
#include "tests/emulator/shared_memory.h"
#include "tests/emulator/warp_instructions.h"

namespace onepass::cuda {

ONEPASS_DEVICE Uint32 shared_address(const void* p) {
  return static_cast<Uint32>(emulator::SharedMemory::address_of(p));
}

ONEPASS_DEVICE void ldmatrix_x4(Uint32 (&r)[4], Uint32 address) { emulator::ldmatrix_x4(r, address, false); }
ONEPASS_DEVICE void ldmatrix_x4_trans(Uint32 (&r)[4], Uint32 address) {
  emulator::ldmatrix_x4(r, address, true);
}

ONEPASS_DEVICE void store_shared(Uint32 address, Uint32 pair) {
  std::memcpy(emulator::write_shared(address, 4, 4, "st.shared"), &pair, 4);
}
ONEPASS_DEVICE void store_shared(Uint32 address, const uint4& words) {
  std::memcpy(emulator::write_shared(address, 16, 16, "st.shared"), &words, 16);
}
ONEPASS_DEVICE void store_shared(Uint32 address, unsigned short element) {
  std::memcpy(emulator::write_shared(address, 2, 2, "st.shared"), &element, 2);
}

ONEPASS_DEVICE void store_shared(Uint32 address, float a, float b, float c, float d) {
  const float values[] = {a, b, c, d};
  std::memcpy(emulator::write_shared(address, 16, 16, "st.shared"), values, 16);
}
ONEPASS_DEVICE void stmatrix_x4_trans(Uint32 address, const Uint32* r) {
  emulator::stmatrix_x4_trans(address, r);
}
ONEPASS_DEVICE float2 load_shared_pair(Uint32 address) {
  float2 x;
  std::memcpy(&x, emulator::read_shared(address, 8, 8, "ld.shared"), 8);
  return x;
}

}  // namespace onepass::cuda
