// shared_row.h - how long a row of 16-bit elements is in shared memory. Read by g++ and by NVRTC alike (no
// include).
//
// Rows have an odd number of 16-byte pieces, so that the eight rows of an ldmatrix fall into different banks
// and every address is a base plus a constant (a swizzle would cost an exclusive-or each).
#pragma once

#ifndef ONEPASS_HOST_DEVICE
#if defined(__CUDACC__)
#define ONEPASS_HOST_DEVICE __host__ __device__
#else
#define ONEPASS_HOST_DEVICE
#endif
#endif

namespace onepass::cuda {

ONEPASS_HOST_DEVICE constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Bytes from one row to the next; `padded` is a multiple of 16 elements.
ONEPASS_HOST_DEVICE constexpr int shared_pitch_bytes(int padded) { return padded * 2 + 16; }

template <int kHeadDim, int kMultiple = 16>
struct SharedRow {
  static constexpr int kPadded = round_up(kHeadDim, kMultiple);  // elements that products read
  static constexpr int kPitch = shared_pitch_bytes(kPadded);     // bytes
};

}  // namespace onepass::cuda
