// shared_row.h - where a 16-bit element lies in a tile in shared memory. Read by g++ and by NVRTC alike.
//
// The eight rows of an ldmatrix fall into different banks in one of two ways. Rows of whole lines of 128
// bytes are swizzled: the index of a 16-byte piece in its line is exclusive-or'ed with row % 8, and the eight
// pieces that the threads of a row copy at once stay in one line. Other rows get 16 bytes of padding, so that
// they are an odd number of pieces.
#pragma once

#include "common/host_device.h"

namespace onepass::cuda {

ONEPASS_HOST_DEVICE constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Whether rows of `padded` elements are swizzled; each of padded / multiple parts then is whole lines too.
ONEPASS_HOST_DEVICE constexpr bool is_swizzled(int padded, int multiple) {
  return padded % (4 * multiple) == 0;
}

/// Bytes from one row to the next; `padded` is a multiple of `multiple`, which is 16 elements or more.
ONEPASS_HOST_DEVICE constexpr int shared_pitch_bytes(int padded, int multiple) {
  return padded * 2 + (is_swizzled(padded, multiple) ? 0 : 16);
}

/// Offset from the tile's start, a multiple of 128, of the byte `column` of a row.
ONEPASS_HOST_DEVICE constexpr int shared_offset(int row, int column, int pitch, bool swizzled) {
  return row * pitch + (swizzled ? column ^ (row % 8 * 16) : column);
}

template <int kHeadDim, int kMultiple = 16>
struct SharedRow {
  static constexpr int kPadded = round_up(kHeadDim, kMultiple);  // elements that products read
  static constexpr bool kSwizzled = is_swizzled(kPadded, kMultiple);
  static constexpr int kPitch = shared_pitch_bytes(kPadded, kMultiple);  // bytes

  ONEPASS_HOST_DEVICE static constexpr int offset(int row, int column) {
    return shared_offset(row, column, kPitch, kSwizzled);
  }
  /// The offset or address of column c + bytes, from that of column c of the same row. c and `bytes` have no
  /// bit in common below 128, so that addition is exclusive-or.
  template <class Offset>
  ONEPASS_HOST_DEVICE static constexpr Offset along(Offset offset_of_c, int bytes) {
    if (!kSwizzled) return offset_of_c + static_cast<Offset>(bytes);
    return (offset_of_c ^ static_cast<Offset>(bytes % 128)) + static_cast<Offset>(bytes / 128 * 128);
  }
};

}  // namespace onepass::cuda
