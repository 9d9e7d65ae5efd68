// sm80/backward.cuh - attention backward for every NVIDIA GPU since Ampere
//
// Problem    dV = P^T dO, dK = scale dS^T Q and dQ = scale dS K, with P = exp(S - lse) from Q and K again and
//            dS = P (dO V^T - delta); and dS itself, summed, for an additive bias. bf16 or f16 in and out,
//            f32 sums; dense or packed; any head_dim; every mask and score term of spec section 2
// Tile       three kernels of one text. A block owns rows and walks past the other side in steps of a tile:
//              Keys     owns kTileN keys of a key head, walks over queries of all heads of its group: dK, dV
//              Queries  owns kTileM queries of a head, walks over keys: dQ
//              Bias     owns kTileM queries x kTileN keys of the bias, walks over what shares them: dbias
//            Every sum has one owner and a fixed order: the same bits in every run, on every GPU. Seven
//            products where five would do is the price: S and dP are made twice
// Roles      kWarps warps, each owning kWarpRows rows: S and dP (own rows x columns of a step) stay in its
//            registers and are operand A of the products that follow; no warp needs another's
// Slices     columns of a sum that one block holds: all, or 256 at most, others belong to other blocks; Keys
//            with kApart makes dV and dK in different blocks, too
// Pipeline   cp.async, kStages buffers for a step
// Shared     own rows and kStages steps of both widths (shared_row.h); Keys: lse and delta of a step
// Registers  per thread and m16 tile of own rows: 4 for each 8 columns of S, dP and the sums
// Numerics   P and dS are rounded to the element for the products, sums are f32; where the mask forbids, P and
//            dS are 0 by selection; rows of the other side that no own row sees are zeros in shared memory
// Sources    Dao 2023 (arXiv:2307.08691), algorithm 2; PTX ISA for the fragment maps
#pragma once

#include "common/gradient_row.cuh"
#include "common/score.cuh"
#include "common/sequence.cuh"
#include "common/tile_copy.cuh"
#include "common/tile_range.h"
#include "params.h"
#include "ptx/fragment_maps.h"
#include "ptx/global.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "sm80/backward_layout.h"

namespace onepass::cuda {

/// What a query row is to its scores.
struct RowStatistics {
  float lse_log2, delta;
};

template <class Spec>
struct BackwardSm80 {
  using Element = typename Spec::Element;
  static constexpr BackwardPart kPart = Spec::kPart;
  static constexpr bool kOfKeys = kPart == BackwardPart::Keys, kOfBias = kPart == BackwardPart::Bias;
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kOwnRows = kOfKeys ? Spec::kTileN : Spec::kTileM;   // rows of a block
  static constexpr int kStepRows = kOfKeys ? Spec::kTileM : Spec::kTileN;  // rows of the other side in a step
  static constexpr int kWarpRows = kOwnRows / Spec::kWarps;
  static constexpr int kRowTiles = kWarpRows / 16;    // m16 tiles of a warp
  static constexpr int kColumnTiles = kStepRows / 8;  // n8 tiles of S and dP
  using RowD = SharedRow<Spec::kHeadDim>;             // of Q and K
  using RowV = SharedRow<Spec::kHeadDimV>;            // of V and dO
  static constexpr int kWidthD = slice_columns(RowD::kPadded), kWidthV = slice_columns(RowV::kPadded);
  static constexpr int kSlicesD = slices(RowD::kPadded), kSlicesV = slices(RowV::kPadded);
  static constexpr int kSlices = kOfBias ? 1 : !kOfKeys ? kSlicesD : Spec::kApart ? kSlicesD + kSlicesV : 1;
  static constexpr BackwardLayout kLayout =
      backward_sm80_layout(kOwnRows, kStepRows, RowD::kPitch, RowV::kPitch, Spec::kStages, kOfKeys);
  static constexpr int kSharedBytes = kLayout.end;

  static_assert(kOwnRows % (16 * Spec::kWarps) == 0, "a warp owns whole m16 tiles");
  static_assert(kStepRows % 16 == 0, "products take 16 rows of a step at once");
  static_assert(kGradientRowPad % kStepRows == 0 || !kOfKeys, "statistics of a step are whole and aligned");
  static_assert(!kOfKeys || Spec::kApart || (kSlicesD == 1 && kSlicesV == 1), "both sums are in one block");

  using Tile = float[kRowTiles][kColumnTiles][4];

  const BackwardParams& b;
  const ForwardParams& p;
  char* shared;
  Uint32 shared_base;
  int lane, warp_row;  // warp_row: first own row of this warp, in the block
  int batch_idx, head_k, slice;
  int own0;  // first row of the block
  int head;  // of the queries at hand
  Sequence seq;
  BasicKeyBand<Index> band;
  int begin, end;  // rows of the other side that some own row sees

  ONEPASS_DEVICE BackwardSm80(const BackwardParams& params, char* shared_memory)
      : b(params), p(params.forward), shared(shared_memory) {
    shared_base = shared_address(shared_memory);
    lane = static_cast<int>(threadIdx.x) & 31;
    warp_row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  }

  // --- copies ---------------------------------------------------------------------------------------------

  ONEPASS_DEVICE const unsigned short* rows_of_q(const TensorParams& t) const {
    return static_cast<const unsigned short*>(t.data) + batch_idx * t.batch_stride + seq.q_row0 * t.row_stride +
           head * t.head_stride;
  }
  ONEPASS_DEVICE const unsigned short* rows_of_k(const TensorParams& t) const {
    return static_cast<const unsigned short*>(t.data) + batch_idx * t.batch_stride + seq.k_row0 * t.row_stride +
           head_k * t.head_stride;
  }

  /// kRows rows from `first` on; those outside [row_begin, row_end) become zeros.
  template <class Row, int kRows, int kHeadDim>
  ONEPASS_DEVICE void load(int offset, const unsigned short* base, Index64 row_stride, int first, int row_begin,
                           int row_end) const {
    using Copy = TileCopy<Row, kRows, kHeadDim, kThreads, Spec::kLoadBytes>;
    // Passes of eight rows or more keep a thread's place in the swizzle; a single warp copies four.
    if (kThreads >= 64 && first >= row_begin && first + kRows <= row_end) {
      auto copy = Copy::strided(shared_base + offset, base + first * row_stride, row_stride);
#pragma unroll
      for (int i = 0; i < Copy::kPasses; ++i) copy.pass(i, row_stride);
      return;
    }
    Copy::checked(shared_base + offset, [&](int row, bool& inside) {
      inside = first + row >= row_begin && first + row < row_end;
      return base + (inside ? (first + row) * row_stride : 0);
    });
  }

  /// Queries and their dO, or keys and their values.
  template <int kRows>
  ONEPASS_DEVICE void load_queries(int offset_d, int offset_v, int first, int row_begin, int row_end) const {
    load<RowD, kRows, Spec::kHeadDim>(offset_d, rows_of_q(p.q), p.q.row_stride, first, row_begin, row_end);
    load<RowV, kRows, Spec::kHeadDimV>(offset_v, rows_of_q(b.dout), b.dout.row_stride, first, row_begin, row_end);
  }
  template <int kRows>
  ONEPASS_DEVICE void load_keys(int offset_d, int offset_v, int first, int row_begin, int row_end) const {
    load<RowD, kRows, Spec::kHeadDim>(offset_d, rows_of_k(p.k), p.k.row_stride, first, row_begin, row_end);
    load<RowV, kRows, Spec::kHeadDimV>(offset_v, rows_of_k(p.v), p.v.row_stride, first, row_begin, row_end);
  }

  /// lse and delta of the queries of a step.
  ONEPASS_DEVICE void load_statistics(int stage, int first) const {
    constexpr int kPieces = kStepRows / 4;  // of 16 bytes
    const int piece = static_cast<int>(threadIdx.x);
    const Index64 row = first_gradient_row(p, seq, batch_idx, head) + first;
    for (int n = piece; n < 2 * kPieces; n += kThreads) {
      const float* source = (n < kPieces ? b.lse_log2 : b.delta) + row + n % kPieces * 4;
      cp_async<16>(shared_base + kLayout.statistics(stage) + n * 16, source, 16);
    }
  }

  // --- products -------------------------------------------------------------------------------------------

  template <int kTiles>
  ONEPASS_DEVICE static void clear(float (&x)[kRowTiles][kTiles][4]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) x[t][n][e] = 0.0f;
      }
    }
  }

  /// x = own rows * (rows of the step)^T, both of width Row.
  template <class Row>
  ONEPASS_DEVICE void row_product(Tile& x, int own, int step) const {
    clear(x);
    const TilePlace a_place = ldmatrix_a_place(lane), b_place = ldmatrix_b_place(lane);
    const Uint32 a_base = shared_base + own + Row::offset(warp_row + a_place.row, 2 * a_place.column);
    const Uint32 b_base = shared_base + step + Row::offset(b_place.row, 2 * b_place.column);
#pragma unroll
    for (int k = 0; k < Row::kPadded / 16; ++k) {
      Uint32 a[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) ldmatrix_x4(a[t], Row::along(a_base + 16 * t * Row::kPitch, 32 * k));
#pragma unroll
      for (int n = 0; n < kColumnTiles / 2; ++n) {
        Uint32 y[4];
        ldmatrix_x4(y, Row::along(b_base, 32 * k) + 16 * n * Row::kPitch);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_m16n8k16<Element>(x[t][2 * n], a[t], y[0], y[1]);
          mma_m16n8k16<Element>(x[t][2 * n + 1], a[t], y[2], y[3]);
        }
      }
    }
  }

  /// sum += x * columns [first_column, ...) of the step's rows.
  template <class Row, int kTiles>
  ONEPASS_DEVICE void add_product(float (&sum)[kRowTiles][kTiles][4], const Tile& x, int step,
                                  int first_column) const {
    const TilePlace place = ldmatrix_b_trans_place(lane);
    const Uint32 base = shared_base + step + Row::offset(place.row, 2 * (first_column + place.column));
#pragma unroll
    for (int k = 0; k < kStepRows / 16; ++k) {
      Uint32 a[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const AccumulatorPair from = operand_a_from_accumulators(i);
          const float* pair = &x[t][2 * k + from.tile][from.element];
          a[t][i] = ElementTraits<Element>::pack(pair[0], pair[1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles / 2; ++n) {
        if (8 * kTiles < Row::kPadded && first_column + 16 * n >= Row::kPadded) break;  // the last slice
        Uint32 y[4];
        ldmatrix_x4_trans(y, Row::along(base, 32 * n) + 16 * k * Row::kPitch);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_m16n8k16<Element>(sum[t][2 * n], a[t], y[0], y[1]);
          mma_m16n8k16<Element>(sum[t][2 * n + 1], a[t], y[2], y[3]);
        }
      }
    }
  }

  // --- scores ---------------------------------------------------------------------------------------------

  ONEPASS_DEVICE int own_row(int t, int e) const {
    return own0 + warp_row + 16 * t + accumulator_place(lane, e).row;
  }
  ONEPASS_DEVICE static int step_row(int first, int lane, int n, int e) {
    return first + 8 * n + accumulator_place(lane, e).column;
  }

  ONEPASS_DEVICE ScoreRow describe_query(int i) const {
    const KeyRange keys = visible_keys(band, i < seq.seqlen_q ? seq.seqlen_k : 0, i, i + 1);
    return describe_row<true>(p, keys, seq, batch_idx, head, i);
  }

  /// S becomes what the exponent takes; slope: the derivative of the softcap at each score.
  ONEPASS_DEVICE void change_scores(Tile& s, Tile& slope, int first) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) slope[t][n][e] = softcap_slope(p, s[t][n][e]);
      }
    }
    if constexpr (kOfKeys) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          apply_score_terms<Element, 2 * kRowTiles>(
              p, describe_query(step_row(first, lane, n, e)),
              [&](int i) -> float& { return s[i / 2][n][e + 2 * (i % 2)]; },
              [&](int i) { return own_row(i / 2, e + 2 * (i % 2)); });
        }
      }
    } else {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          apply_score_terms<Element>(p, describe_query(own_row(t, 2 * r)), first, s[t], r);
        }
      }
    }
  }

  /// Whether every query of the tile sees every key of it.
  ONEPASS_DEVICE bool whole(int first) const {
    const int i0 = kOfKeys ? first : own0, j0 = kOfKeys ? own0 : first;
    const int i_last = i0 + Spec::kTileM - 1, j_last = j0 + Spec::kTileN - 1;
    return i_last < seq.seqlen_q && j_last < seq.seqlen_k && i_last + band.lower <= j0 &&
           j_last <= i0 + band.upper;
  }
  ONEPASS_DEVICE bool sees(int i, int j) const {
    return i < seq.seqlen_q && j < seq.seqlen_k && i + band.lower <= j && j <= i + band.upper;
  }

  /// From S and dP to P and dS with respect to the final score, in place. statistics(t, n, e, &lse, &delta).
  template <class Statistics>
  ONEPASS_DEVICE void differentiate(Tile& s, Tile& dp, int first, bool with_dp, Statistics statistics) const {
    const bool masked = !whole(first);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const RowStatistics of_query = statistics(t, n, e);
          const float probability = exp2_approx(s[t][n][e] * p.softmax_scale_log2 - of_query.lse_log2);
          const int own = own_row(t, e), other = step_row(first, lane, n, e);
          const bool seen = !masked || (kOfKeys ? sees(other, own) : sees(own, other));
          s[t][n][e] = seen ? probability : 0.0f;
          if (with_dp) dp[t][n][e] = seen ? probability * (dp[t][n][e] - of_query.delta) : 0.0f;
        }
      }
    }
  }

  /// x *= y, but for zeros: where the mask forbids, y may be NaN.
  ONEPASS_DEVICE static void multiply(Tile& x, const Tile& y) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) x[t][n][e] = x[t][n][e] == 0.0f ? 0.0f : x[t][n][e] * y[t][n][e];
      }
    }
  }

  /// P and dS of the step in buffer `stage`, whose first row is `first`. dS is with respect to the dot
  /// product, without the scale, or for a bias with respect to the final score.
  template <class Statistics>
  ONEPASS_DEVICE void probabilities(Tile& s, Tile& dp, int stage, int first, bool with_dp,
                                    Statistics statistics) const {
    row_product<RowD>(s, kLayout.own_d, kLayout.step_d(stage));
    if (with_dp) row_product<RowV>(dp, kLayout.own_v, kLayout.step_v(stage));
    if constexpr (Spec::kScoreTerms) {
      Tile slope;
      change_scores(s, slope, first);
      differentiate(s, dp, first, with_dp, statistics);
      if (!kOfBias && with_dp) multiply(dp, slope);
    } else {
      differentiate(s, dp, first, with_dp, statistics);
    }
  }

  // --- results --------------------------------------------------------------------------------------------

  /// Own rows of a slice of columns, times `factor`.
  template <int kTiles>
  ONEPASS_DEVICE void store(const float (&sum)[kRowTiles][kTiles][4], unsigned short* base, Index64 row_stride,
                            int num_rows, int head_dim, int first_column, float factor) const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = own_row(t, 2 * r);
        if (row >= num_rows) continue;
        unsigned short* out = base + row * row_stride;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const int column = first_column + 8 * n + accumulator_place(lane, 0).column;
          const Uint32 pair =
              ElementTraits<Element>::pack(sum[t][n][2 * r] * factor, sum[t][n][2 * r + 1] * factor);
          if constexpr (Spec::kStoreBytes >= 4) {
            if (column < head_dim) store_global(out + column, pair);
          } else {
            if (column < head_dim) out[column] = static_cast<unsigned short>(pair);
            if (column + 1 < head_dim) out[column + 1] = static_cast<unsigned short>(pair >> 16);
          }
        }
      }
    }
  }

  // --- the three kernels ----------------------------------------------------------------------------------

  /// Calls load(n, stage) and body(n, stage) for n = 0 ... count - 1, in order; loads run ahead.
  template <class Load, class Body>
  ONEPASS_DEVICE static void pipeline(int count, Load load, Body body) {
    if (count > 0) load(0, 0);
    cp_async_commit();
    for (int n = 0; n < count; ++n) {
      if (Spec::kStages == 2 && n + 1 < count) load(n + 1, (n + 1) % 2);
      if (Spec::kStages == 2) cp_async_commit();
      cp_async_wait<Spec::kStages - 1>();
      __syncthreads();
      body(n, Spec::kStages == 2 ? n % 2 : 0);
      __syncthreads();
      if (Spec::kStages == 1 && n + 1 < count) load(n + 1, 0);
      if (Spec::kStages == 1) cp_async_commit();
    }
    cp_async_wait<0>();
  }

  ONEPASS_DEVICE void find_sequence() {
    seq = sequence_at(p, batch_idx);
    band = key_band(static_cast<MaskKind>(p.mask_kind), p.window_left, p.window_right, seq.seqlen_q, seq.seqlen_k);
  }

  /// The first index of a block runs fastest.
  ONEPASS_DEVICE static int take(int& rest, int count) {
    const int index = rest % count;
    rest /= count;
    return index;
  }

  ONEPASS_DEVICE void run_keys() {
    int rest = static_cast<int>(blockIdx.x);
    own0 = take(rest, (p.seqlen_k + kOwnRows - 1) / kOwnRows) * kOwnRows;  // causal: the first keys are seen by most
    slice = take(rest, kSlices);
    head_k = take(rest, p.num_heads_k);
    batch_idx = rest;
    find_sequence();
    if (own0 >= seq.seqlen_k) return;
    const int key_end = min(own0 + kOwnRows, seq.seqlen_k);
    const auto blocks = query_blocks(band, seq.seqlen_q, own0, key_end, kStepRows);
    const int m_block_min = static_cast<int>(blocks.m_block_min);
    const int num_blocks = static_cast<int>(blocks.m_block_max) - m_block_min;
    begin = static_cast<int>(max_index(0, own0 - band.upper));
    end = static_cast<int>(min_index(seq.seqlen_q, key_end - band.lower));
    const int head0 = head_k * p.group.divisor;
    head = head0;
    load_keys<kOwnRows>(kLayout.own_d, kLayout.own_v, own0, own0, key_end);
    const auto load_step = [&](int n, int stage) {
      head = head0 + n / num_blocks;
      const int first = (m_block_min + n % num_blocks) * kStepRows;
      load_queries<kStepRows>(kLayout.step_d(stage), kLayout.step_v(stage), first, begin, end);
      load_statistics(stage, first);
    };
    const auto compute = [&](Tile& s, Tile& dp, int n, int stage, bool with_dp) {
      head = head0 + n / num_blocks;
      const int first = (m_block_min + n % num_blocks) * kStepRows;
      const float* statistics = reinterpret_cast<const float*>(shared + kLayout.statistics(stage));
      probabilities(s, dp, stage, first, with_dp, [&](int, int n8, int e) {
        const int column = 8 * n8 + accumulator_place(lane, e).column;
        return RowStatistics{statistics[column], statistics[kStepRows + column]};
      });
    };
    unsigned short* const dk = const_cast<unsigned short*>(rows_of_k(b.dk));
    unsigned short* const dv = const_cast<unsigned short*>(rows_of_k(b.dv));
    const int count = num_blocks * p.group.divisor;
    if constexpr (!Spec::kApart) {
      float sum_k[kRowTiles][RowD::kPadded / 8][4], sum_v[kRowTiles][RowV::kPadded / 8][4];
      clear(sum_k);
      clear(sum_v);
      pipeline(count, load_step, [&](int n, int stage) {
        Tile s, dp;
        compute(s, dp, n, stage, true);
        add_product<RowV>(sum_v, s, kLayout.step_v(stage), 0);
        add_product<RowD>(sum_k, dp, kLayout.step_d(stage), 0);
      });
      store(sum_k, dk, b.dk.row_stride, seq.seqlen_k, Spec::kHeadDim, 0, p.softmax_scale);
      store(sum_v, dv, b.dv.row_stride, seq.seqlen_k, Spec::kHeadDimV, 0, 1.0f);
    } else if (slice < kSlicesV) {
      float sum[kRowTiles][kWidthV / 8][4];
      clear(sum);
      pipeline(count, load_step, [&](int n, int stage) {
        Tile s, dp;
        compute(s, dp, n, stage, false);
        add_product<RowV>(sum, s, kLayout.step_v(stage), slice * kWidthV);
      });
      store(sum, dv, b.dv.row_stride, seq.seqlen_k, Spec::kHeadDimV, slice * kWidthV, 1.0f);
    } else {
      const int first_column = (slice - kSlicesV) * kWidthD;
      float sum[kRowTiles][kWidthD / 8][4];
      clear(sum);
      pipeline(count, load_step, [&](int n, int stage) {
        Tile s, dp;
        compute(s, dp, n, stage, true);
        add_product<RowD>(sum, dp, kLayout.step_d(stage), first_column);
      });
      store(sum, dk, b.dk.row_stride, seq.seqlen_k, Spec::kHeadDim, first_column, p.softmax_scale);
    }
  }

  /// lse and delta of this thread's rows, which stay for all steps.
  struct OwnStatistics {
    RowStatistics of[kRowTiles][2];
  };
  ONEPASS_DEVICE OwnStatistics own_statistics() const {
    OwnStatistics statistics;
    const Index64 row0 = first_gradient_row(p, seq, batch_idx, head);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = own_row(t, 2 * r);
        const bool inside = row < seq.seqlen_q;
        statistics.of[t][r] = inside ? RowStatistics{b.lse_log2[row0 + row], b.delta[row0 + row]}
                                     : RowStatistics{infinity(), 0.0f};
      }
    }
    return statistics;
  }

  ONEPASS_DEVICE void run_queries() {
    int rest = static_cast<int>(blockIdx.x);
    const int m_blocks = (p.seqlen_q + kOwnRows - 1) / kOwnRows;
    own0 = (m_blocks - 1 - take(rest, m_blocks)) * kOwnRows;  // causal: the last queries see most
    slice = take(rest, kSlices);
    head = take(rest, p.num_heads_q);
    batch_idx = rest;
    head_k = p.group.quotient(head);
    find_sequence();
    if (own0 >= seq.seqlen_q) return;
    const int query_end = min(own0 + kOwnRows, seq.seqlen_q);
    const KeyRange keys = visible_keys(band, seq.seqlen_k, own0, query_end);
    begin = static_cast<int>(keys.begin);
    end = static_cast<int>(keys.end);
    const int n_block_min = begin / kStepRows, n_block_max = (end + kStepRows - 1) / kStepRows;
    load_queries<kOwnRows>(kLayout.own_d, kLayout.own_v, own0, own0, query_end);
    const OwnStatistics statistics = own_statistics();
    float sum[kRowTiles][kWidthD / 8][4];
    clear(sum);
    pipeline(
        n_block_max - n_block_min,
        [&](int n, int stage) {
          load_keys<kStepRows>(kLayout.step_d(stage), kLayout.step_v(stage), (n_block_min + n) * kStepRows, begin, end);
        },
        [&](int n, int stage) {
          Tile s, dp;
          probabilities(s, dp, stage, (n_block_min + n) * kStepRows, true,
                        [&](int t, int, int e) { return statistics.of[t][e / 2]; });
          add_product<RowD>(sum, dp, kLayout.step_d(stage), slice * kWidthD);
        });
    unsigned short* const dq = const_cast<unsigned short*>(rows_of_q(b.dq));
    store(sum, dq, b.dq.row_stride, seq.seqlen_q, Spec::kHeadDim, slice * kWidthD, p.softmax_scale);
  }

  ONEPASS_DEVICE void store_bias(const Tile& sum, int bias_b, int bias_h, int first) const {
    const Index64 base = bias_b * b.dbias_batch_stride + bias_h * b.dbias_head_stride;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = own_row(t, e), j = step_row(first, lane, n, e);
          if (i >= b.dbias_rows || j >= b.dbias_keys) continue;
          const Index64 place = base + i * b.dbias_row_stride + j * b.dbias_key_stride;
          if (b.dbias_is_f32) {
            static_cast<float*>(b.dbias)[place] = sum[t][n][e];
          } else {
            static_cast<unsigned short*>(b.dbias)[place] =
                static_cast<unsigned short>(ElementTraits<Element>::pack(sum[t][n][e], 0.0f));
          }
        }
      }
    }
  }

  ONEPASS_DEVICE void run_bias() {
    int rest = static_cast<int>(blockIdx.x);
    const int first = take(rest, (b.dbias_keys + kStepRows - 1) / kStepRows) * kStepRows;
    own0 = take(rest, (b.dbias_rows + kOwnRows - 1) / kOwnRows) * kOwnRows;
    const int bias_h = take(rest, b.dbias_heads), bias_b = rest;
    const bool one_b = b.dbias_batch == 1, one_h = b.dbias_heads == 1;
    Tile sum;
    clear(sum);
    for (batch_idx = one_b ? 0 : bias_b; batch_idx < (one_b ? p.batch : bias_b + 1); ++batch_idx) {
      find_sequence();
      if (own0 >= seq.seqlen_q || first >= seq.seqlen_k) continue;
      const int query_end = min(own0 + kOwnRows, seq.seqlen_q);
      const KeyRange keys = visible_keys(band, seq.seqlen_k, own0, query_end);
      begin = static_cast<int>(keys.begin);
      end = static_cast<int>(keys.end);
      if (first + kStepRows <= begin || first >= end) continue;
      for (head = one_h ? 0 : bias_h; head < (one_h ? p.num_heads_q : bias_h + 1); ++head) {
        head_k = p.group.quotient(head);
        load_queries<kOwnRows>(kLayout.own_d, kLayout.own_v, own0, own0, query_end);
        load_keys<kStepRows>(kLayout.step_d(0), kLayout.step_v(0), first, begin, end);
        cp_async_commit();
        const OwnStatistics statistics = own_statistics();
        cp_async_wait<0>();
        __syncthreads();
        Tile s, dp;
        probabilities(s, dp, 0, first, true, [&](int t, int, int e) { return statistics.of[t][e / 2]; });
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[t][n][e] += dp[t][n][e];
          }
        }
        __syncthreads();
      }
    }
    store_bias(sum, bias_b, bias_h, first);
  }

  ONEPASS_DEVICE void run(char* /*shared*/) {
    if constexpr (kOfKeys) {
      run_keys();
    } else if constexpr (kOfBias) {
      run_bias();
    } else {
      run_queries();
    }
  }
};

}  // namespace onepass::cuda
