// tile_range.h - which keys a query row sees, which key blocks a query block visits, which of those need
// masking. Read by g++ and by NVRTC alike (no include); every backend, the planner and the accounting use it.
//
// Every mask of spec.md section 2 is a band: row i sees keys i + lower <= j <= i + upper inside [0,
// seqlen_k).
#pragma once

#include "common/host_device.h"

namespace onepass {

using Index = long long;

constexpr Index kUnlimited = Index{1} << 60;  // beyond any length, and sums of a few stay in 64 bits

struct KeyBand {
  Index lower, upper;
};

struct KeyRange {
  Index begin, end;  // half open
};

struct TileRange {
  Index n_block_min, n_block_max;            // blocks to visit, half open
  Index n_block_full_min, n_block_full_max;  // among them, blocks that every row sees whole, half open
};

enum class MaskKind : int { None, CausalBottomRight, CausalTopLeft };

ONEPASS_HOST_DEVICE constexpr Index min_index(Index a, Index b) { return a < b ? a : b; }
ONEPASS_HOST_DEVICE constexpr Index max_index(Index a, Index b) { return a > b ? a : b; }

/// The band of one sequence. Negative windows are unlimited.
ONEPASS_HOST_DEVICE constexpr KeyBand key_band(MaskKind kind, Index window_left, Index window_right,
                                               Index seqlen_q, Index seqlen_k) {
  const Index off = seqlen_k - seqlen_q;
  KeyBand band{-kUnlimited, kUnlimited};
  if (kind == MaskKind::CausalBottomRight) band.upper = off;
  if (kind == MaskKind::CausalTopLeft) band.upper = 0;
  if (window_right >= 0) band.upper = min_index(band.upper, off + window_right);
  if (window_left >= 0) band.lower = off - window_left;
  return band;
}

/// Keys that rows [row_begin, row_end) see between them. A band is empty for every row when lower > upper (a
/// top-left diagonal with a left window and more keys than queries).
ONEPASS_HOST_DEVICE constexpr KeyRange visible_keys(KeyBand band, Index seqlen_k, Index row_begin,
                                                    Index row_end) {
  if (band.lower > band.upper) return {0, 0};
  const Index begin = max_index(0, row_begin + band.lower);
  const Index end = min_index(seqlen_k, row_end + band.upper);
  return begin < end ? KeyRange{begin, end} : KeyRange{0, 0};
}

/// Blocks of tile_n keys for the query rows [row_begin, row_end).
ONEPASS_HOST_DEVICE constexpr TileRange tile_range(KeyBand band, Index seqlen_k, Index row_begin,
                                                   Index row_end, Index tile_n) {
  const KeyRange keys = visible_keys(band, seqlen_k, row_begin, row_end);
  if (keys.begin == keys.end) return {0, 0, 0, 0};
  const Index n_min = keys.begin / tile_n;
  const Index n_max = (keys.end + tile_n - 1) / tile_n;
  const Index common_begin = max_index(0, row_end - 1 + band.lower);  // seen by every row from here
  const Index common_end = max_index(0, min_index(seqlen_k, row_begin + 1 + band.upper));  // up to here
  const Index full_min = min_index(n_max, max_index(n_min, (common_begin + tile_n - 1) / tile_n));
  const Index full_max = min_index(n_max, common_end / tile_n);
  return {n_min, n_max, full_min, max_index(full_min, full_max)};
}

}  // namespace onepass
