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

/// In 64 bits, or in 32 where no length, row or limit of a band passes 2^30 - 1024: sums of two then fit.
template <class T>
struct BasicKeyBand {
  T lower, upper;
};

template <class T>
struct BasicKeyRange {
  T begin, end;  // half open
};

template <class T>
struct BasicTileRange {
  T n_block_min, n_block_max;            // blocks to visit, half open
  T n_block_full_min, n_block_full_max;  // among them, blocks that every row sees whole, half open
};

using KeyBand = BasicKeyBand<Index>;
using KeyRange = BasicKeyRange<Index>;
using TileRange = BasicTileRange<Index>;

/// The type of the band decides, whatever the other arguments are.
template <class T>
struct SameType {
  using Type = T;
};

enum class MaskKind : int { None, CausalBottomRight, CausalTopLeft };

ONEPASS_HOST_DEVICE constexpr Index min_index(Index a, Index b) { return a < b ? a : b; }
ONEPASS_HOST_DEVICE constexpr Index max_index(Index a, Index b) { return a > b ? a : b; }
template <class T>
ONEPASS_HOST_DEVICE constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
ONEPASS_HOST_DEVICE constexpr T larger(T a, T b) {
  return a > b ? a : b;
}

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
template <class T>
ONEPASS_HOST_DEVICE constexpr BasicKeyRange<T> visible_keys(BasicKeyBand<T> band,
                                                            typename SameType<T>::Type seqlen_k,
                                                            typename SameType<T>::Type row_begin,
                                                            typename SameType<T>::Type row_end) {
  if (band.lower > band.upper) return {0, 0};
  const T begin = larger<T>(0, row_begin + band.lower);
  const T end = smaller<T>(seqlen_k, row_end + band.upper);
  return begin < end ? BasicKeyRange<T>{begin, end} : BasicKeyRange<T>{0, 0};
}

/// Blocks of tile_n keys for the query rows [row_begin, row_end).
template <class T>
ONEPASS_HOST_DEVICE constexpr BasicTileRange<T> tile_range(BasicKeyBand<T> band,
                                                           typename SameType<T>::Type seqlen_k,
                                                           typename SameType<T>::Type row_begin,
                                                           typename SameType<T>::Type row_end,
                                                           typename SameType<T>::Type tile_n) {
  const BasicKeyRange<T> keys = visible_keys(band, seqlen_k, row_begin, row_end);
  if (keys.begin == keys.end) return {0, 0, 0, 0};
  const T n_min = keys.begin / tile_n;
  const T n_max = (keys.end + tile_n - 1) / tile_n;
  const T common_begin = larger<T>(0, row_end - 1 + band.lower);  // seen by every row from here
  const T common_end = larger<T>(0, smaller<T>(seqlen_k, row_begin + 1 + band.upper));  // up to here
  const T full_min = smaller<T>(n_max, larger<T>(n_min, (common_begin + tile_n - 1) / tile_n));
  const T full_max = smaller<T>(n_max, common_end / tile_n);
  return {n_min, n_max, full_min, larger<T>(full_min, full_max)};
}

/// Blocks of tile_m query rows, half open.
template <class T>
struct BasicQueryBlocks {
  T m_block_min, m_block_max;
};

/// Blocks of queries that visit the keys [key_begin, key_end), one at least: those whose tile_range has a
/// block with some of these keys.
template <class T>
ONEPASS_HOST_DEVICE constexpr BasicQueryBlocks<T> query_blocks(BasicKeyBand<T> band,
                                                               typename SameType<T>::Type seqlen_q,
                                                               typename SameType<T>::Type key_begin,
                                                               typename SameType<T>::Type key_end,
                                                               typename SameType<T>::Type tile_m) {
  const T row_begin = larger<T>(0, key_begin - band.upper);  // earlier rows end before these keys
  const T row_end = smaller<T>(seqlen_q, key_end - band.lower);
  if (band.lower > band.upper || row_begin >= row_end) return {0, 0};
  return {row_begin / tile_m, (row_end + tile_m - 1) / tile_m};
}

}  // namespace onepass
