// sm80/forward.cuh - attention forward for every NVIDIA GPU since Ampere
//
// Problem    O = softmax(scale * Q K^T + terms, masked) V and lse; bf16 or f16 in, f32 sums; dense, packed or
//            paged keys; any head_dim; every mask and score term of spec section 2; optionally one part of
//            the keys
// Tile       kTileM packed query rows x kTileN keys; one thread block walks n_block high to low. With
//            kPackGqa the query heads of one key head are interleaved as rows: row r is query r / group, head
//            r % group
// Roles      kWarps warps, each owning rows from the first product to the store. With kColumnGroups > 1 that
//            many warps share rows: each computes S for its part of the keys, they agree on the row maxima,
//            put P into shared memory and each adds P V for its columns of O, whose accumulators else do not
//            fit
// Pipeline   cp.async, one buffer each for K and V: V of block n loads under Q K^T of n, K of n-1 under the
//            softmax and P V of n. Q stays in shared memory and is read again for every block
// Shared     (kTileM + kTileN) rows of K's pitch + kTileN rows of V's pitch, swizzled or padded
//            (shared_row.h); with kColumnGroups > 1 also P (kTileM rows of kTileN) and a float for each row
//            and group; O reuses it all
// Registers  per thread: kWarpRows/16 * Dv/2 / kColumnGroups of O, as many of S with kTileN for Dv
// Numerics   base-2 exponent, maximum starts at -inf, keys past the end are zeros in shared memory, -inf in S
// Sources    Dao 2023 (arXiv:2307.08691), algorithm 1; PTX ISA for the fragment maps
#pragma once

#include "common/key_parts.h"
#include "common/score.cuh"
#include "common/sequence.cuh"
#include "common/softmax.cuh"
#include "common/split_rows.cuh"
#include "common/tile_copy.cuh"
#include "common/tile_range.h"
#include "params.h"
#include "ptx/barrier.cuh"
#include "ptx/fragment_maps.h"
#include "ptx/global.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace onepass::cuda {

/// What is stored at once.
template <int kBytes>
struct PieceOf;
template <>
struct PieceOf<16> {
  using Type = uint4;
};
template <>
struct PieceOf<4> {
  using Type = Uint32;
};
template <>
struct PieceOf<2> {
  using Type = unsigned short;
};

template <class Spec>
struct ForwardSm80 {
  using Element = typename Spec::Element;
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr Index kMostKeys = 0x7fffffff;
  static constexpr int kColumnGroups = Spec::kColumnGroups;  // warps that share rows
  static constexpr int kWarpRows = Spec::kTileM * kColumnGroups / Spec::kWarps;
  static constexpr int kRowTiles = kWarpRows / 16;  // m16 tiles of a warp
  static constexpr int kWarpKeys = Spec::kTileN / kColumnGroups;
  static constexpr int kScoreTiles = kWarpKeys / 8;  // n8 tiles of a warp's S
  using RowK = SharedRow<Spec::kHeadDim>;
  using RowV = SharedRow<Spec::kHeadDimV, 16 * kColumnGroups>;
  static constexpr int kOutTiles = RowV::kPadded / 8 / kColumnGroups;  // n8 tiles of a warp's O
  static constexpr int kDimSteps = RowK::kPadded / 16;                 // k16 steps of Q K^T
  static constexpr int kKeySteps = Spec::kTileN / 16;                  // k16 steps of P V
  static constexpr int kPitchK = RowK::kPitch;
  static constexpr int kPitchV = RowV::kPitch;
  static constexpr int kQueryBytes = Spec::kTileM * kPitchK;
  static constexpr int kKeyBytes = Spec::kTileN * kPitchK;
  static constexpr int kValueBytes = Spec::kTileN * kPitchV;
  using RowP = SharedRow<Spec::kTileN, 32>;  // padded: fewer addresses to keep
  static constexpr int kProbabilityBytes = kColumnGroups > 1 ? Spec::kTileM * RowP::kPitch : 0;
  static constexpr int kStatisticsBytes = kColumnGroups > 1 ? Spec::kTileM * kColumnGroups * 4 : 0;
  static constexpr int kLoopBytes =
      kQueryBytes + kKeyBytes + kValueBytes + kProbabilityBytes + kStatisticsBytes;
  static constexpr int kOutBytes = Spec::kTileM * kPitchV;
  static constexpr int kSharedBytes = kLoopBytes > kOutBytes ? kLoopBytes : kOutBytes;

  static_assert(Spec::kWarps % kColumnGroups == 0 && kWarpRows % 16 == 0, "a warp owns whole m16 tiles");
  static_assert(kWarpKeys % 16 == 0, "products take 16 keys a step");
  static_assert(Spec::kWarps / kColumnGroups <= 15,
                "a named barrier for the warps that share rows, beside barrier 0");
  static_assert(Spec::kStages == 1, "K and V have one buffer each");
  static_assert(!Spec::kParts || (Spec::kSplit && kPartKeys % Spec::kTileN == 0), "parts are whole tiles");

  const ForwardParams& p;
  Uint32 shared_q, shared_k, shared_v, shared_p;
  float* statistics;  // of rows: one float for each row and column group
  int lane, warp;
  int warp_row, warp_key, warp_column;  // first row, key of a tile and column of O that this warp owns

  // This block's work.
  int batch_idx, head_k, split_idx;
  int head0;  // query head of packed row 0
  int row0;   // first packed row
  Sequence seq;
  int band_lower, band_upper;  // KeyBand in 32 bits: no length is longer
  int key_begin, key_end;      // keys that some row of the block sees
  const unsigned short *k_base, *v_base;

  float s[kRowTiles][kScoreTiles][4];
  float o[kRowTiles][kOutTiles][4];
  RunningSoftmax<kRowTiles> softmax;

  ONEPASS_DEVICE ForwardSm80(const ForwardParams& params, char* shared) : p(params) {
    shared_q = shared_address(shared);
    shared_k = shared_q + kQueryBytes;
    shared_v = shared_k + kKeyBytes;
    shared_p = shared_v + kValueBytes;
    statistics = reinterpret_cast<float*>(shared + kLoopBytes - kStatisticsBytes);
    lane = static_cast<int>(threadIdx.x) & 31;
    warp = static_cast<int>(threadIdx.x) / 32;
    warp_row = warp / kColumnGroups * kWarpRows;
    warp_key = warp % kColumnGroups * kWarpKeys;
    warp_column = warp % kColumnGroups * (8 * kOutTiles);
  }

  /// Reads the block's index as (batch, head, split, m_block); m_block runs fastest, longest rows first.
  ONEPASS_DEVICE bool take_work() {
    const int tile = static_cast<int>(blockIdx.x);
    int rest = p.m_blocks.quotient(tile);
    row0 = (p.m_blocks.divisor - 1 - p.m_blocks.remainder(tile, rest)) * Spec::kTileM;
    if constexpr (Spec::kSplit) {
      const int split_tile = rest;
      rest = p.num_splits.quotient(split_tile);
      split_idx = p.num_splits.remainder(split_tile, rest);
    }
    batch_idx = p.tile_heads.quotient(rest);
    const int head = p.tile_heads.remainder(rest, batch_idx);
    head_k = Spec::kPackGqa ? head : p.group.quotient(head);
    head0 = Spec::kPackGqa ? head * p.group.divisor : head;
    seq = sequence_at(p, batch_idx);
    return row0 < seq.seqlen_q * pack();
  }

  ONEPASS_DEVICE const unsigned short* key_base(const TensorParams& t) const {
    const unsigned short* base = static_cast<const unsigned short*>(t.data) + head_k * t.head_stride;
    return Spec::kPaged ? base : base + batch_idx * t.batch_stride + seq.k_row0 * t.row_stride;
  }
  ONEPASS_DEVICE int pack() const { return Spec::kPackGqa ? p.group.divisor : 1; }
  /// Query index of a packed row, and its head.
  ONEPASS_DEVICE int query_of(int row) const { return Spec::kPackGqa ? p.group.quotient(row) : row; }
  ONEPASS_DEVICE int head_of(int row) const {
    return Spec::kPackGqa ? head0 + p.group.remainder(row, p.group.quotient(row)) : head0;
  }

  ONEPASS_DEVICE Index64 row_offset(const TensorParams& t, int row) const {
    return batch_idx * t.batch_stride + (seq.q_row0 + query_of(row)) * t.row_stride +
           head_of(row) * t.head_stride;
  }

  ONEPASS_DEVICE void load_queries() const {
    using Copy = TileCopy<RowK, Spec::kTileM, Spec::kHeadDim, kThreads, Spec::kLoadBytes>;
    const unsigned short* base = static_cast<const unsigned short*>(p.q.data);
    if (!Spec::kPackGqa && row0 + Spec::kTileM <= seq.seqlen_q) {
      auto copy = Copy::strided(shared_q, base + row_offset(p.q, row0), p.q.row_stride);
#pragma unroll
      for (int i = 0; i < Copy::kPasses; ++i) copy.pass(i, p.q.row_stride);
      return;
    }
    Copy::checked(shared_q, [&](int row, bool& inside) {
      inside = row0 + row < seq.seqlen_q * pack();
      return base + (inside ? row_offset(p.q, row0 + row) : 0);
    });
  }
  using CopyK = TileCopy<RowK, Spec::kTileN, Spec::kHeadDim, kThreads, Spec::kLoadBytes>;
  using CopyV = TileCopy<RowV, Spec::kTileN, Spec::kHeadDimV, kThreads, Spec::kLoadBytes>;

  /// A tile of K or V on its way: passes of it are still to be issued, if it is whole.
  template <class Copy>
  struct TileLoad {
    // So many copies of a thread at once queue up before the reads of shared memory that a product waits for.
    static constexpr bool kSpread = Copy::kPasses * Copy::kGroups >= 16;
    typename Copy::Strided copy;
    bool whole;
    Index64 row_stride;

    /// The passes that belong to step `step` of `num_steps`.
    ONEPASS_DEVICE void proceed(int step, int num_steps) {
#pragma unroll
      for (int i = 0; i < Copy::kPasses; ++i) {
        if (i * num_steps / Copy::kPasses == step && whole) copy.pass(i, row_stride);
      }
    }
  };

  ONEPASS_DEVICE void load_keys(int n_block) const {
    start_tile<CopyK>(shared_k, p.k, k_base, n_block).proceed(0, 1);
  }
  ONEPASS_DEVICE TileLoad<CopyV> start_values(int n_block) const {
    return start_tile<CopyV>(shared_v, p.v, v_base, n_block);
  }

  /// Rows that no query row of this block sees become zeros: whatever they hold, 0 * x stays 0. A tile with
  /// such rows, and one of pages, is issued at once.
  template <class Copy>
  ONEPASS_DEVICE TileLoad<Copy> start_tile(Uint32 shared, const TensorParams& t, const unsigned short* base,
                                           int n_block) const {
    const int first = n_block * Spec::kTileN;
    const bool whole = !Spec::kPaged && first >= key_begin && first + Spec::kTileN <= key_end;
    if (!whole) {
      const int* table = Spec::kPaged ? p.block_table + batch_idx * p.table_batch_stride : nullptr;
      Copy::checked(shared, [&](int row, bool& inside) {
        return key_row<Spec::kPaged>(p, t, base, table, key_begin, key_end, first + row, inside);
      });
    }
    return {Copy::strided(shared, base + first * t.row_stride, t.row_stride), whole, t.row_stride};
  }

  /// First of the rows that a thread owns in half r of m16 tile t.
  ONEPASS_DEVICE int own_row(int t, int r) const {
    return row0 + warp_row + 16 * t + accumulator_place(lane, 2 * r).row;
  }

  ONEPASS_DEVICE ScoreRow describe_row(int row) const {
    const int i = query_of(row), h = min(head_of(row), p.num_heads_q - 1);
    const bool inside = i < seq.seqlen_q;
    const KeyRange keys =
        visible_keys(KeyBand{band_lower, band_upper}, inside ? seq.seqlen_k : 0, i, i + 1);
    return onepass::cuda::describe_row<Spec::kScoreTerms>(p, keys, seq, batch_idx, h, i);
  }

  /// Score terms and mask of this warp's keys, which start at first_key.
  ONEPASS_DEVICE void change_scores(int first_key, bool masked) {
    if (!Spec::kScoreTerms && !masked) return;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const ScoreRow row = describe_row(own_row(t, r));
        if constexpr (Spec::kScoreTerms) apply_score_terms<Element>(p, row, first_key, s[t], r);
        if (masked) apply_mask(row.keys, first_key, s[t], r);
      }
    }
  }

  template <class Row>
  ONEPASS_DEVICE static int offset_of(TilePlace place) {
    return Row::offset(place.row, 2 * place.column);
  }

  /// S = Q K^T                                                     (kWarpRows, kWarpKeys) in registers
  /// load: a tile whose copies are issued ahead of the first step or, spread, of each in the first half.
  template <class Load>
  ONEPASS_DEVICE void score_product(Load load) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[t][n][e] = 0.0f;
      }
    }
    const Uint32 base = shared_k + warp_key * kPitchK + offset_of<RowK>(ldmatrix_b_place(lane));
    constexpr int kPairs = kScoreTiles / 2;  // n8 tiles come two at a time
    Uint32 a[2][kRowTiles][4], b[2][4];
    ldmatrix_x4(b[0], base);
    load_query_step(a[0], 0);
#pragma unroll
    for (int step = 0; step < kDimSteps; ++step) {
      load.proceed(step, Load::kSpread ? (kDimSteps + 1) / 2 : 1);
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        const int i = step * kPairs + n;
        if (i + 1 < kDimSteps * kPairs) {  // the next operands load under this product
          ldmatrix_x4(b[(i + 1) % 2],
                      RowK::along(base, 32 * ((i + 1) / kPairs)) + 16 * ((i + 1) % kPairs) * kPitchK);
          if (n + 1 == kPairs) load_query_step(a[(step + 1) % 2], step + 1);
        }
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_m16n8k16<Element>(s[t][2 * n], a[step % 2][t], b[i % 2][0], b[i % 2][1]);
          mma_m16n8k16<Element>(s[t][2 * n + 1], a[step % 2][t], b[i % 2][2], b[i % 2][3]);
        }
      }
    }
  }

  ONEPASS_DEVICE void load_query_step(Uint32 (&a)[kRowTiles][4], int step) const {
    const Uint32 base = shared_q + warp_row * kPitchK + offset_of<RowK>(ldmatrix_a_place(lane));
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) ldmatrix_x4(a[t], RowK::along(base + 16 * t * kPitchK, 32 * step));
  }

  /// Waits for the warps that share this warp's rows, and makes what they wrote to shared memory visible.
  ONEPASS_DEVICE void join_row_group() const {
    named_barrier_sync(1 + warp / kColumnGroups, 32 * kColumnGroups);
  }

  /// Where the row of half r of m16 tile t keeps its statistics, one float for each column group.
  ONEPASS_DEVICE float* statistics_of(int t, int r) const {
    return statistics + (warp_row + 16 * t + accumulator_place(lane, 2 * r).row) * kColumnGroups;
  }

  /// The maximum of a row over the keys of all warps that share it.
  ONEPASS_DEVICE void join_maxima(float (&larger)[kRowTiles][2]) const {
    if constexpr (kColumnGroups > 1) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if ((lane & 3) == 0) statistics_of(t, r)[warp % kColumnGroups] = larger[t][r];
        }
      }
      join_row_group();
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int g = 0; g < kColumnGroups; ++g) larger[t][r] = fmaxf(larger[t][r], statistics_of(t, r)[g]);
        }
      }
    }
  }

  /// This warp's keys of P to shared memory, for all warps of its rows. Nobody still reads the last block's:
  /// every warp has come through join_maxima since.
  ONEPASS_DEVICE void share_probabilities() const {
    if constexpr (kColumnGroups > 1) {
      const TilePlace place = accumulator_place(lane, 0);
      const Uint32 base =
          shared_p + warp_row * RowP::kPitch + RowP::offset(place.row, 2 * (warp_key + place.column));
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int n = 0; n < kScoreTiles; ++n) {
            store_shared(RowP::along(base, 16 * n) + (16 * t + 8 * r) * RowP::kPitch,
                         ElementTraits<Element>::pack(s[t][n][2 * r], s[t][n][2 * r + 1]));
          }
        }
      }
      join_row_group();
    }
  }

  /// O += P V                                                      (kWarpRows, 8 * kOutTiles) in registers
  ONEPASS_DEVICE void value_product() {
    const Uint32 base = shared_v + 2 * warp_column + offset_of<RowV>(ldmatrix_b_trans_place(lane));
    constexpr int kPairs = kOutTiles / 2;
    Uint32 a[kRowTiles][4], b[2][4];
    ldmatrix_x4_trans(b[0], base);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) load_probabilities(a[t], t, step);
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        const int i = step * kPairs + n;
        if (i + 1 < kKeySteps * kPairs) {
          ldmatrix_x4_trans(b[(i + 1) % 2],
                            RowV::along(base, 32 * ((i + 1) % kPairs)) + 16 * ((i + 1) / kPairs) * kPitchV);
        }
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_m16n8k16<Element>(o[t][2 * n], a[t], b[i % 2][0], b[i % 2][1]);
          mma_m16n8k16<Element>(o[t][2 * n + 1], a[t], b[i % 2][2], b[i % 2][3]);
        }
      }
    }
  }

  /// P of 16 keys as operand A: packed from the score registers, or what share_probabilities wrote.
  ONEPASS_DEVICE void load_probabilities(Uint32 (&a)[4], int t, int step) const {
    if constexpr (kColumnGroups > 1) {
      const Uint32 base =
          shared_p + (warp_row + 16 * t) * RowP::kPitch + offset_of<RowP>(ldmatrix_a_place(lane));
      ldmatrix_x4(a, RowP::along(base, 32 * step));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const AccumulatorPair place = operand_a_from_accumulators(i);
        const float* pair = &s[t][2 * step + place.tile][place.element];
        a[i] = ElementTraits<Element>::pack(pair[0], pair[1]);
      }
    }
  }

  /// One key block. masked: some row does not see all of it.
  ONEPASS_DEVICE void step(int n_block, int n_block_min, bool masked) {
    cp_async_wait<0>();  // K of this block, and Q before the first
    __syncthreads();
    score_product(start_values(n_block));
    cp_async_commit();
    cp_async_wait<0>();  // V of this block
    __syncthreads();
    if (n_block > n_block_min) load_keys(n_block - 1);
    cp_async_commit();
    change_scores(n_block * Spec::kTileN + warp_key, masked);
    softmax.update(s, o, p.softmax_scale_log2,
                   [this](float (&larger)[kRowTiles][2]) { join_maxima(larger); });
    share_probabilities();
    value_product();
  }

  ONEPASS_DEVICE void run(char* shared) {
    if (!take_work()) return;
    load_queries();  // wanted in any case but for an empty range of keys, and first of all
    cp_async_commit();
    k_base = key_base(p.k);
    v_base = key_base(p.v);
    const KeyBand band = key_band(static_cast<MaskKind>(p.mask_kind), p.window_left, p.window_right,
                                  seq.seqlen_q, seq.seqlen_k);
    band_lower = static_cast<int>(max_index(band.lower, -kMostKeys));
    band_upper = static_cast<int>(min_index(max_index(band.upper, -kMostKeys), kMostKeys));
    const int row_end = min(row0 + Spec::kTileM, seq.seqlen_q * pack());
    const int query_begin = query_of(row0), query_end = query_of(row_end - 1) + 1;
    const KeyRange keys = visible_keys(band, seq.seqlen_k, query_begin, query_end);
    key_begin = static_cast<int>(keys.begin);
    key_end = static_cast<int>(keys.end);
    const TileRange range = tile_range(band, seq.seqlen_k, query_begin, query_end, Spec::kTileN);
    int n_block_min = static_cast<int>(range.n_block_min), n_block_max = static_cast<int>(range.n_block_max);
    int full_min = static_cast<int>(range.n_block_full_min);
    int full_max = static_cast<int>(range.n_block_full_max);
    if constexpr (Spec::kParts) {
      const KeyRange part = part_blocks(n_block_min, n_block_max, split_idx, Spec::kTileN);
      n_block_min = static_cast<int>(part.begin);
      n_block_max = static_cast<int>(part.end);
    } else if constexpr (Spec::kSplit) {
      const int blocks = p.num_splits.quotient(n_block_max - n_block_min + p.num_splits.divisor - 1);
      const int begin = min(n_block_max, n_block_min + split_idx * blocks);
      n_block_max = min(n_block_max, begin + blocks);
      n_block_min = begin;
    }
    if constexpr (Spec::kSplit) {
      full_min = clamp_index(full_min, n_block_min, n_block_max);
      full_max = clamp_index(full_max, full_min, n_block_max);
    }
    softmax.reset();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[t][n][e] = 0.0f;
      }
    }
    if (n_block_max > n_block_min) {
      load_keys(n_block_max - 1);
      cp_async_commit();
      for (int n_block = n_block_max - 1; n_block >= n_block_min; --n_block) {
        step(n_block, n_block_min, n_block < full_min || n_block >= full_max);
      }
    }
    cp_async_wait<0>();  // Q where there were no keys
    store(shared);
  }

  /// Each thread's share of the sums becomes the sum of the whole row.
  ONEPASS_DEVICE void finish_sums() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        softmax.sum[t][r] = quad_sum(softmax.sum[t][r]);
        if constexpr (kColumnGroups > 1) {
          if ((lane & 3) == 0) statistics_of(t, r)[warp % kColumnGroups] = softmax.sum[t][r];
        }
      }
    }
    if constexpr (kColumnGroups > 1) {
      join_row_group();
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          softmax.sum[t][r] = 0.0f;
#pragma unroll
          for (int g = 0; g < kColumnGroups; ++g) softmax.sum[t][r] += statistics_of(t, r)[g];
        }
      }
    }
  }

  ONEPASS_DEVICE void store(char* shared) {
    finish_sums();
    __syncthreads();  // every warp has finished with Q, K, V and the statistics in shared memory
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = own_row(t, r);
        const bool inside = row < seq.seqlen_q * pack();
        const bool with_sink = !Spec::kSplit && p.sinks != nullptr && inside;
        const float sink = with_sink ? p.sinks[head_of(row) * p.sinks_stride] : -infinity();
        const RowResult result = finish_row(softmax.max[t][r], softmax.sum[t][r], p.softmax_scale_log2, sink);
        if constexpr (Spec::kSplit) {
          if (inside) store_split_row(row, result, t, r);
        } else {
          if (inside && p.lse != nullptr && (lane & 3) == 0 && warp_column == 0) {
            p.lse[batch_idx * p.lse_batch_stride + head_of(row) * p.lse_head_stride +
                  (seq.q_row0 + query_of(row)) * p.lse_row_stride] = result.lse;
          }
          const int first = offset_of<RowV>(accumulator_place(lane, 2 * r)) + (warp_row + 16 * t) * kPitchV +
                            2 * warp_column;
#pragma unroll
          for (int n = 0; n < kOutTiles; ++n) {
            *reinterpret_cast<Uint32*>(shared + RowV::along(first, 16 * n)) = ElementTraits<Element>::pack(
                o[t][n][2 * r] * result.factor, o[t][n][2 * r + 1] * result.factor);
          }
        }
      }
    }
    if constexpr (!Spec::kSplit) {
      if constexpr (kColumnGroups == 1) {
        __syncwarp();
      } else {
        __syncthreads();
      }
      store_rows(shared);
    }
  }

  /// A warp's rows from shared to global memory, in pieces of kStoreBytes. Warps that share rows take turns.
  /// Pieces are read some at a time, ahead of the writes that wait for them.
  ONEPASS_DEVICE void store_rows(const char* shared) const {
    using Piece = typename PieceOf<Spec::kStoreBytes>::Type;
    constexpr int kPieces = Spec::kHeadDimV * 2 / Spec::kStoreBytes;  // of a row
    static_assert(kPieces * Spec::kStoreBytes == Spec::kHeadDimV * 2, "a row is whole pieces");
    constexpr int kLanes = 32 * kColumnGroups;
    constexpr int kAtOnce = 4;
    const int row_limit = min(kWarpRows, seq.seqlen_q * pack() - row0 - warp_row);
    unsigned short* const base = static_cast<unsigned short*>(p.o.data);
#pragma unroll 2
    for (int first = warp % kColumnGroups * 32 + lane; first < kWarpRows * kPieces;
         first += kAtOnce * kLanes) {
      Piece pieces[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int idx = first + i * kLanes;
        const char* in = shared + RowV::offset(warp_row + idx / kPieces, idx % kPieces * Spec::kStoreBytes);
        if (idx < kWarpRows * kPieces) pieces[i] = *reinterpret_cast<const Piece*>(in);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int idx = first + i * kLanes, row = idx / kPieces;
        char* out = reinterpret_cast<char*>(base + row_offset(p.o, row0 + warp_row + row)) +
                    idx % kPieces * Spec::kStoreBytes;
        if (row < row_limit) store_global(out, pieces[i]);
      }
    }
  }

  /// Normalised f32 partial result.
  ONEPASS_DEVICE void store_split_row(int row, RowResult result, int t, int r) const {
    const SplitRow place = split_row<Spec::kParts>(p, seq, batch_idx, head_of(row), query_of(row));
    const Index64 index = split_idx * place.num_rows + place.index;
    if ((lane & 3) == 0 && warp_column == 0) p.split_lse[index] = result.lse;
    float* out = p.split_o + index * Spec::kHeadDimV;
    for (int n = 0; n < kOutTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int d = warp_column + 8 * n + 2 * (lane & 3) + e;
        if (d < Spec::kHeadDimV) out[d] = o[t][n][2 * r + e] * result.factor;
      }
    }
  }
};

}  // namespace onepass::cuda
