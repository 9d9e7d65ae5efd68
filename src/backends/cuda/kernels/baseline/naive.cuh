// baseline/naive.cuh - attention in three steps that store S and P: what one pass is measured against
//
// Problem    S = scale * Q K^T in f32, P = softmax(S) in the element type, O = P V; dense, causal and windows, head
//            groups. For tests and benchmarks; no plan offers it
// Tile       64 x 64 of the product, 16 of its depth at a time in shared memory; 256 threads, 4 x 4 results each.
//            Plain f32 multiply-adds: no tensor cores, so its speed is that of the vector units at best
// Work       scores and values: one block per tile, sequence and head; softmax: one warp per row
// Shared     2 * 16 * 68 * 4 = 8,704 bytes
// Numerics   a row without keys gives P = 0; keys that no row of a tile sees count as zeros, whatever they hold
// Sources    Vaswani et al. 2017 (arXiv:1706.03762), equation 1
#pragma once

#include "common/tile_range.h"
#include "params.h"
#include "ptx/math.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

constexpr int kNaiveTile = 64, kNaiveDepth = 16, kNaiveSide = 16;  // kNaiveSide^2 threads

ONEPASS_DEVICE KeyBand naive_band(const NaiveParams& p) {
  return key_band(static_cast<MaskKind>(p.mask_kind), p.window_left, p.window_right, p.seqlen_q, p.seqlen_k);
}

/// What a block computes: a tile of one sequence and query head. Columns run fastest.
struct NaiveTile {
  int row0, column0, head, batch_idx;

  ONEPASS_DEVICE NaiveTile(const NaiveParams& p, int columns) {
    const int column_tiles = (columns + kNaiveTile - 1) / kNaiveTile;
    const int row_tiles = (p.seqlen_q + kNaiveTile - 1) / kNaiveTile;
    int rest = static_cast<int>(blockIdx.x);
    column0 = rest % column_tiles * kNaiveTile;
    rest /= column_tiles;
    row0 = rest % row_tiles * kNaiveTile;
    rest /= row_tiles;
    head = rest % p.num_heads_q;
    batch_idx = rest / p.num_heads_q;
  }
};

/// c += A B over [0, depth): a(row, k) and b(k, column) of the tile, 0 outside. Neighbouring threads read
/// neighbouring k of A, and neighbouring columns of B when kColumnsAreNeighbours, else neighbouring k.
template <bool kColumnsAreNeighbours, class A, class B>
ONEPASS_DEVICE void naive_product(float (&c)[4][4], int depth, A a, B b) {
  __shared__ float sA[kNaiveDepth][kNaiveTile + 4], sB[kNaiveDepth][kNaiveTile + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int ty = thread / kNaiveSide, tx = thread % kNaiveSide;
  for (int first = 0; first < depth; first += kNaiveDepth) {
    for (int idx = thread; idx < kNaiveDepth * kNaiveTile; idx += kNaiveSide * kNaiveSide) {
      const int k = idx % kNaiveDepth, line = idx / kNaiveDepth;
      sA[k][line] = first + k < depth ? a(line, first + k) : 0.0f;
      const int b_k = kColumnsAreNeighbours ? idx / kNaiveTile : k;
      const int column = kColumnsAreNeighbours ? idx % kNaiveTile : line;
      sB[b_k][column] = first + b_k < depth ? b(first + b_k, column) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kNaiveDepth; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) c[i][j] += sA[k][ty + kNaiveSide * i] * sB[k][tx + kNaiveSide * j];
      }
    }
    __syncthreads();
  }
}

/// store(row, column, value) for the results of this thread, in the tile's coordinates.
template <class Store>
ONEPASS_DEVICE void naive_store(const float (&c)[4][4], Store store) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) store(thread / kNaiveSide + kNaiveSide * i, thread % kNaiveSide + kNaiveSide * j, c[i][j]);
  }
}

/// S = scale * Q K^T, -inf where the mask forbids.
template <class Spec>
struct NaiveScores {
  using Element = typename Spec::Element;
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;  // dynamic
  static_assert(kThreads == kNaiveSide * kNaiveSide, "4 x 4 results a thread");

  const NaiveParams& p;

  ONEPASS_DEVICE NaiveScores(const NaiveParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const NaiveTile tile(p, p.seqlen_k);
    const Element* q = static_cast<const Element*>(p.q.data) + tile.batch_idx * p.q.batch_stride + tile.head * p.q.head_stride;
    const Element* k = static_cast<const Element*>(p.k.data) + tile.batch_idx * p.k.batch_stride +
                       tile.head / p.group * p.k.head_stride;
    float c[4][4] = {};
    naive_product<false>(
        c, p.head_dim,
        [&](int row, int d) {
          const int i = tile.row0 + row;
          return i < p.seqlen_q ? ElementTraits<Element>::to_float(q[i * p.q.row_stride + d]) : 0.0f;
        },
        [&](int d, int column) {
          const int j = tile.column0 + column;
          return j < p.seqlen_k ? ElementTraits<Element>::to_float(k[j * p.k.row_stride + d]) : 0.0f;
        });
    const KeyBand band = naive_band(p);
    float* scores = p.scores + (static_cast<Index64>(tile.batch_idx) * p.num_heads_q + tile.head) * p.seqlen_q * p.seqlen_k;
    naive_store(c, [&](int row, int column, float x) {
      const int i = tile.row0 + row, j = tile.column0 + column;
      if (i >= p.seqlen_q || j >= p.seqlen_k) return;
      const KeyRange keys = visible_keys(band, p.seqlen_k, i, i + 1);
      scores[static_cast<Index64>(i) * p.seqlen_k + j] = j >= keys.begin && j < keys.end ? x * p.softmax_scale : -infinity();
    });
  }
};

/// P = softmax(S) row by row.
template <class Spec>
struct NaiveSoftmax {
  using Element = typename Spec::Element;
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;

  const NaiveParams& p;

  ONEPASS_DEVICE NaiveSoftmax(const NaiveParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const Index64 row = static_cast<Index64>(blockIdx.x) * Spec::kWarps + threadIdx.x / 32;
    if (row >= static_cast<Index64>(p.batch) * p.num_heads_q * p.seqlen_q) return;
    const float* scores = p.scores + row * p.seqlen_k;
    unsigned short* probabilities = static_cast<unsigned short*>(p.probabilities) + row * p.seqlen_k;
    float max = -infinity(), sum = 0.0f;
    for (int j = lane; j < p.seqlen_k; j += 32) max = fmaxf(max, scores[j]);
    for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
    const float reference = max == -infinity() ? 0.0f : max;
    for (int j = lane; j < p.seqlen_k; j += 32) sum += expf(scores[j] - reference);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int j = lane; j < p.seqlen_k; j += 32) {
      probabilities[j] =
          static_cast<unsigned short>(ElementTraits<Element>::pack(expf(scores[j] - reference) * factor, 0.0f));
    }
  }
};

/// O = P V.
template <class Spec>
struct NaiveValues {
  using Element = typename Spec::Element;
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;  // dynamic
  static_assert(kThreads == kNaiveSide * kNaiveSide, "4 x 4 results a thread");

  const NaiveParams& p;

  ONEPASS_DEVICE NaiveValues(const NaiveParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const NaiveTile tile(p, p.head_dim_v);
    const Element* probabilities =
        static_cast<const Element*>(p.probabilities) +
        (static_cast<Index64>(tile.batch_idx) * p.num_heads_q + tile.head) * p.seqlen_q * p.seqlen_k;
    const Element* v = static_cast<const Element*>(p.v.data) + tile.batch_idx * p.v.batch_stride +
                       tile.head / p.group * p.v.head_stride;
    const KeyRange keys =
        visible_keys(naive_band(p), p.seqlen_k, tile.row0, min(tile.row0 + kNaiveTile, p.seqlen_q));
    float c[4][4] = {};
    naive_product<true>(
        c, p.seqlen_k,
        [&](int row, int j) {
          const int i = tile.row0 + row;
          return i < p.seqlen_q ? ElementTraits<Element>::to_float(probabilities[static_cast<Index64>(i) * p.seqlen_k + j]) : 0.0f;
        },
        [&](int j, int column) {
          const int d = tile.column0 + column;
          const bool inside = d < p.head_dim_v && j >= keys.begin && j < keys.end;
          return inside ? ElementTraits<Element>::to_float(v[j * p.v.row_stride + d]) : 0.0f;
        });
    unsigned short* out = static_cast<unsigned short*>(p.o.data) + tile.batch_idx * p.o.batch_stride + tile.head * p.o.head_stride;
    naive_store(c, [&](int row, int column, float x) {
      const int i = tile.row0 + row, d = tile.column0 + column;
      if (i >= p.seqlen_q || d >= p.head_dim_v) return;
      out[i * p.o.row_stride + d] = static_cast<unsigned short>(ElementTraits<Element>::pack(x, 0.0f));
    });
  }
};

}  // namespace onepass::cuda
