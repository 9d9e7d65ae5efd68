// sm80/backward_layout.h - shared memory and slices of the sm80 backward kernels. Read by g++ and by NVRTC
// alike.
#pragma once

#include "common/host_device.h"

namespace onepass::cuda {

enum class BackwardPart : int { Keys, Queries, Bias };

constexpr int kMostSliceColumns = 256;  // of a sum in registers: 128 of them for each m16 tile of a warp

/// Blocks that share the columns of a sum of so many (a multiple of 16), and the columns of each: whole lines
/// of 128 bytes where there are several.
ONEPASS_HOST_DEVICE constexpr int slices(int columns) {
  return (columns + kMostSliceColumns - 1) / kMostSliceColumns;
}
ONEPASS_HOST_DEVICE constexpr int slice_columns(int columns) {
  const int count = slices(columns), each = (columns + count - 1) / count;
  return count == 1 ? columns : (each + 63) / 64 * 64;
}

/// Offsets in bytes. `own` rows stay, steps of `step` rows come by; both have a row of Q and K's pitch and
/// one of V and dO's.
struct BackwardLayout {
  int own_d, own_v;
  int step0, step_bytes, step_v_offset;
  int statistics0, statistics_bytes;
  int end;

  ONEPASS_HOST_DEVICE constexpr int step_d(int stage) const { return step0 + stage * step_bytes; }
  ONEPASS_HOST_DEVICE constexpr int step_v(int stage) const { return step_d(stage) + step_v_offset; }
  ONEPASS_HOST_DEVICE constexpr int statistics(int stage) const {
    return statistics0 + stage * statistics_bytes;
  }
};

ONEPASS_HOST_DEVICE constexpr BackwardLayout backward_sm80_layout(int own, int step, int pitch_d, int pitch_v,
                                                                  int stages, bool with_statistics) {
  BackwardLayout l{};
  l.own_d = 0;
  l.own_v = own * pitch_d;
  l.step0 = own * (pitch_d + pitch_v);
  l.step_v_offset = step * pitch_d;
  l.step_bytes = step * (pitch_d + pitch_v);
  l.statistics0 = l.step0 + stages * l.step_bytes;
  l.statistics_bytes = with_statistics ? 2 * step * 4 : 0;  // lse and delta
  l.end = l.statistics0 + stages * l.statistics_bytes;
  return l;
}

}  // namespace onepass::cuda
