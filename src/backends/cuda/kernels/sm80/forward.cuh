// sm80/forward.cuh - attention forward for every NVIDIA GPU since Ampere
//
// Problem    O = softmax(scale * Q K^T + terms, masked) V and lse; bf16 or f16 in, f32 sums; dense, packed or paged
//            keys; any head_dim; every mask and score term of spec section 2; optionally one part of the keys
// Tile       kTileM packed query rows x kTileN keys; one thread block walks n_block high to low. With kPackGqa the
//            query heads of one key head are interleaved as rows: row r is query r / group, head r % group
// Roles      kWarps warps, each owning rows from the first product to the store. With kColumnGroups > 1 that many
//            warps share rows: each computes S for its part of the keys, they agree on the row maxima, put P into
//            shared memory and each adds P V for its columns of O. The accumulators of wide heads then fit, and
//            a fragment of V serves twice the rows: shared memory is what bounds head_dim 256
// Pipeline   cp.async; kStages 1: V of block n loads under Q K^T of n, K of n-1 under the softmax and P V of n.
//            kStages 2: K of n-1 loads from the start of block n, V of n-1 from its middle
// Shared     (kTileM + kStages * kTileN) rows of K's pitch + kStages * kTileN rows of V's pitch; with kColumnGroups > 1
//            also P (kTileM rows of kTileN) and a float for each row and group; O reuses it all
// Registers  per thread: O kTileM/kWarps/16 * Dv/2, S likewise * kTileN/2, Q fragments when kQueryResident
// Numerics   base-2 exponent, maximum starts at -inf, keys past the end are zeros in shared memory and -inf in S
// Sources    Dao 2023 (arXiv:2307.08691), algorithm 1; PTX ISA for the fragment maps
#pragma once

#include "common/score.cuh"
#include "common/sequence.cuh"
#include "common/softmax.cuh"
#include "common/tile_copy.cuh"
#include "common/tile_range.h"
#include "params.h"
#include "ptx/barrier.cuh"
#include "ptx/fragment_maps.h"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace onepass::cuda {

template <class Spec>
struct ForwardSm80 {
  using Element = typename Spec::Element;
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kColumnGroups = Spec::kColumnGroups;  // warps that share rows
  static constexpr int kWarpRows = Spec::kTileM * kColumnGroups / Spec::kWarps;
  static constexpr int kRowTiles = kWarpRows / 16;     // m16 tiles of a warp
  static constexpr int kWarpKeys = Spec::kTileN / kColumnGroups;
  static constexpr int kScoreTiles = kWarpKeys / 8;  // n8 tiles of a warp's S
  using RowK = SharedRow<Spec::kHeadDim>;
  using RowV = SharedRow<Spec::kHeadDimV, 16 * kColumnGroups>;
  static constexpr int kOutTiles = RowV::kPadded / 8 / kColumnGroups;  // n8 tiles of a warp's O
  static constexpr int kDimSteps = RowK::kPadded / 16;                 // k16 steps of Q K^T
  static constexpr int kKeySteps = Spec::kTileN / 16;                        // k16 steps of P V
  static constexpr int kPitchK = RowK::kPitch;
  static constexpr int kPitchV = RowV::kPitch;
  static constexpr int kQueryBytes = Spec::kTileM * kPitchK;
  static constexpr int kKeyBytes = Spec::kTileN * kPitchK;
  static constexpr int kValueBytes = Spec::kTileN * kPitchV;
  using RowP = SharedRow<Spec::kTileN>;
  static constexpr int kProbabilityBytes = kColumnGroups > 1 ? Spec::kTileM * RowP::kPitch : 0;
  static constexpr int kStatisticsBytes = kColumnGroups > 1 ? Spec::kTileM * kColumnGroups * 4 : 0;
  static constexpr int kLoopBytes =
      kQueryBytes + Spec::kStages * (kKeyBytes + kValueBytes) + kProbabilityBytes + kStatisticsBytes;
  static constexpr int kOutBytes = Spec::kTileM * kPitchV;
  static constexpr int kSharedBytes = kLoopBytes > kOutBytes ? kLoopBytes : kOutBytes;

  static_assert(Spec::kWarps % kColumnGroups == 0 && kWarpRows % 16 == 0, "a warp owns whole m16 tiles");
  static_assert(kWarpKeys % 16 == 0, "products take 16 keys a step");
  static_assert(Spec::kWarps / kColumnGroups <= 15, "a named barrier for the warps that share rows, beside barrier 0");
  static_assert(Spec::kStages == 1 || Spec::kStages == 2, "the two pipelines of the header");

  const ForwardParams& p;
  Uint32 shared_q, shared_k, shared_v, shared_p;
  float* statistics;  // of rows: one float for each row and column group
  int lane, warp;
  int warp_row, warp_key, warp_column;  // first row, first key of a tile, first column of O that this warp owns

  // This block's work.
  int batch_idx, head_k, split_idx;
  int head0;    // query head of packed row 0
  int row0;     // first packed row
  Sequence seq;
  KeyBand band;
  int key_begin, key_end;  // keys that some row of the block sees
  const unsigned short *k_base, *v_base;

  float s[kRowTiles][kScoreTiles][4];
  float o[kRowTiles][kOutTiles][4];
  Uint32 q_fragment[Spec::kQueryResident ? kRowTiles : 1][Spec::kQueryResident ? kDimSteps : 1][4];
  RunningSoftmax<kRowTiles> softmax;

  ONEPASS_DEVICE ForwardSm80(const ForwardParams& params, char* shared) : p(params) {
    shared_q = shared_address(shared);
    shared_k = shared_q + kQueryBytes;
    shared_v = shared_k + Spec::kStages * kKeyBytes;
    shared_p = shared_v + Spec::kStages * kValueBytes;
    statistics = reinterpret_cast<float*>(shared + kLoopBytes - kStatisticsBytes);
    lane = static_cast<int>(threadIdx.x) & 31;
    warp = static_cast<int>(threadIdx.x) / 32;
    warp_row = warp / kColumnGroups * kWarpRows;
    warp_key = warp % kColumnGroups * kWarpKeys;
    warp_column = warp % kColumnGroups * (8 * kOutTiles);
  }

  /// Reads the block's index as (batch, head, split, m_block); m_block runs fastest, longest rows first.
  ONEPASS_DEVICE bool take_work() {
    const int num_m_blocks = (p.seqlen_q * pack() + Spec::kTileM - 1) / Spec::kTileM;
    const int num_heads = Spec::kPackGqa ? p.num_heads_k : p.num_heads_q;
    int rest = static_cast<int>(blockIdx.x);
    const int m_block = num_m_blocks - 1 - rest % num_m_blocks;
    rest /= num_m_blocks;
    if constexpr (Spec::kSplit) {
      split_idx = rest % p.num_splits;
      rest /= p.num_splits;
    }
    const int head = rest % num_heads;
    batch_idx = rest / num_heads;
    head_k = Spec::kPackGqa ? head : head / p.group;
    head0 = Spec::kPackGqa ? head * p.group : head;
    row0 = m_block * Spec::kTileM;
    seq = sequence_at(p, batch_idx);
    return row0 < seq.seqlen_q * pack();
  }

  ONEPASS_DEVICE const unsigned short* key_base(const TensorParams& t) const {
    const unsigned short* base = static_cast<const unsigned short*>(t.data) + head_k * t.head_stride;
    return Spec::kPaged ? base : base + batch_idx * t.batch_stride + seq.k_row0 * t.row_stride;
  }
  ONEPASS_DEVICE int pack() const { return Spec::kPackGqa ? p.group : 1; }
  /// Query index of a packed row, and its head.
  ONEPASS_DEVICE int query_of(int row) const { return Spec::kPackGqa ? row / p.group : row; }
  ONEPASS_DEVICE int head_of(int row) const { return Spec::kPackGqa ? head0 + row % p.group : head0; }

  ONEPASS_DEVICE Index64 row_offset(const TensorParams& t, int row) const {
    return batch_idx * t.batch_stride + (seq.q_row0 + query_of(row)) * t.row_stride + head_of(row) * t.head_stride;
  }

  ONEPASS_DEVICE void load_queries() const {
    TileCopy<RowK, Spec::kTileM, Spec::kHeadDim, kThreads, Spec::kLoadBytes>::checked(
        shared_q, [&](int row, bool& inside) {
          inside = row0 + row < seq.seqlen_q * pack();
          return static_cast<const unsigned short*>(p.q.data) + (inside ? row_offset(p.q, row0 + row) : 0);
        });
  }
  ONEPASS_DEVICE void load_keys(int n_block, int stage) const {
    load_tile<RowK, Spec::kHeadDim>(shared_k + stage * kKeyBytes, p.k, k_base, n_block);
  }
  ONEPASS_DEVICE void load_values(int n_block, int stage) const {
    load_tile<RowV, Spec::kHeadDimV>(shared_v + stage * kValueBytes, p.v, v_base, n_block);
  }
  /// Rows that no query row of this block sees become zeros: whatever they hold, 0 * x stays 0.
  template <class Row, int kDim>
  ONEPASS_DEVICE void load_tile(Uint32 shared, const TensorParams& t, const unsigned short* base, int n_block) const {
    using Copy = TileCopy<Row, Spec::kTileN, kDim, kThreads, Spec::kLoadBytes>;
    const int first = n_block * Spec::kTileN;
    if (!Spec::kPaged && first >= key_begin && first + Spec::kTileN <= key_end) {
      Copy::strided(shared, base + first * t.row_stride, t.row_stride);
      return;
    }
    const int* table = Spec::kPaged ? p.block_table + batch_idx * p.table_batch_stride : nullptr;
    Copy::checked(shared, [&](int row, bool& inside) {
      return key_row<Spec::kPaged>(p, t, base, table, key_begin, key_end, first + row, inside);
    });
  }

  /// First of the rows that a thread owns in half r of m16 tile t.
  ONEPASS_DEVICE int own_row(int t, int r) const { return row0 + warp_row + 16 * t + accumulator_place(lane, 2 * r).row; }

  ONEPASS_DEVICE ScoreRow describe_row(int row) const {
    const int i = query_of(row), h = min(head_of(row), p.num_heads_q - 1);
    const bool inside = i < seq.seqlen_q;
    ScoreRow out{visible_keys(band, inside ? seq.seqlen_k : 0, i, i + 1), i + seq.seqlen_k - seq.seqlen_q, 0.0f, nullptr};
    if constexpr (Spec::kScoreTerms) {
      if (p.alibi_slopes != nullptr) {
        out.slope = p.alibi_slopes[batch_idx * p.alibi_batch_stride + h * p.alibi_head_stride];
      }
      if (p.bias != nullptr) {
        const Index64 offset = batch_idx * p.bias_batch_stride + h * p.bias_head_stride + i * p.bias_row_stride;
        out.bias = static_cast<const char*>(p.bias) + offset * (p.bias_is_f32 ? 4 : 2);
      }
    }
    return out;
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

  /// Of a 16-bit element in rows of `pitch` bytes.
  ONEPASS_DEVICE static int byte_offset(TilePlace place, int pitch) { return place.row * pitch + 2 * place.column; }

  ONEPASS_DEVICE void load_q_fragment(Uint32 (&a)[4], int t, int step) const {
    ldmatrix_x4(a, shared_q + (warp_row + 16 * t) * kPitchK + 32 * step + byte_offset(ldmatrix_a_place(lane), kPitchK));
  }

  ONEPASS_DEVICE void keep_queries() {
    if constexpr (Spec::kQueryResident) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int step = 0; step < kDimSteps; ++step) load_q_fragment(q_fragment[t][step], t, step);
      }
    }
  }

  /// S = Q K^T                                                     (kWarpRows, kWarpKeys) in registers
  ONEPASS_DEVICE void score_product(int stage) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[t][n][e] = 0.0f;
      }
    }
    const Uint32 base = shared_k + stage * kKeyBytes + warp_key * kPitchK + byte_offset(ldmatrix_b_place(lane), kPitchK);
    constexpr int kPairs = kScoreTiles / 2;  // n8 tiles come two at a time
    Uint32 b[2][4], fresh[2][kRowTiles][4];
    ldmatrix_x4(b[0], base);
    load_query_step(fresh[0], 0);
#pragma unroll
    for (int step = 0; step < kDimSteps; ++step) {
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        const int i = step * kPairs + n;
        if (i + 1 < kDimSteps * kPairs) {  // the next operands load under this product
          ldmatrix_x4(b[(i + 1) % 2], base + 16 * ((i + 1) % kPairs) * kPitchK + 32 * ((i + 1) / kPairs));
          if (n + 1 == kPairs) load_query_step(fresh[(step + 1) % 2], step + 1);
        }
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          const Uint32(&a)[4] = query_operand(fresh[step % 2], t, step);
          mma_m16n8k16<Element>(s[t][2 * n], a, b[i % 2][0], b[i % 2][1]);
          mma_m16n8k16<Element>(s[t][2 * n + 1], a, b[i % 2][2], b[i % 2][3]);
        }
      }
    }
  }

  ONEPASS_DEVICE void load_query_step(Uint32 (&a)[kRowTiles][4], int step) const {
    if constexpr (!Spec::kQueryResident) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) load_q_fragment(a[t], t, step);
    }
  }

  ONEPASS_DEVICE const Uint32 (&query_operand(const Uint32 (&fresh)[kRowTiles][4], int t, int step) const)[4] {
    if constexpr (Spec::kQueryResident) {
      return q_fragment[t][step];
    } else {
      return fresh[t];
    }
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

  /// This warp's keys of P to shared memory, for all warps of its rows. Nobody still reads the last block's: every
  /// warp has come through join_maxima since.
  ONEPASS_DEVICE void share_probabilities() const {
    if constexpr (kColumnGroups > 1) {
      const Uint32 base =
          shared_p + warp_row * RowP::kPitch + 2 * warp_key + byte_offset(accumulator_place(lane, 0), RowP::kPitch);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int n = 0; n < kScoreTiles; ++n) {
            store_shared(base + (16 * t + 8 * r) * RowP::kPitch + 16 * n,
                         ElementTraits<Element>::pack(s[t][n][2 * r], s[t][n][2 * r + 1]));
          }
        }
      }
      join_row_group();
    }
  }

  /// O += P V                                                      (kWarpRows, 8 * kOutTiles) in registers
  ONEPASS_DEVICE void value_product(int stage) {
    const Uint32 base = shared_v + stage * kValueBytes + 2 * warp_column + byte_offset(ldmatrix_b_trans_place(lane), kPitchV);
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
          ldmatrix_x4_trans(b[(i + 1) % 2], base + 16 * ((i + 1) / kPairs) * kPitchV + 32 * ((i + 1) % kPairs));
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
      ldmatrix_x4(a, shared_p + (warp_row + 16 * t) * RowP::kPitch + 32 * step +
                         byte_offset(ldmatrix_a_place(lane), RowP::kPitch));
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
  ONEPASS_DEVICE void step(int n_block, int n_block_min, bool masked, int& stage) {
    cp_async_wait<Spec::kStages - 1>();  // K of this block
    __syncthreads();
    const bool more = n_block > n_block_min;
    if constexpr (Spec::kStages == 1) {
      load_values(n_block, 0);
    } else if (more) {
      load_keys(n_block - 1, stage ^ 1);
    }
    cp_async_commit();
    score_product(stage);
    cp_async_wait<Spec::kStages - 1>();  // V of this block
    __syncthreads();
    if (more) {
      if constexpr (Spec::kStages == 1) {
        load_keys(n_block - 1, 0);
      } else {
        load_values(n_block - 1, stage ^ 1);
      }
    }
    cp_async_commit();
    change_scores(n_block * Spec::kTileN + warp_key, masked);
    softmax.update(s, o, p.softmax_scale_log2, [this](float (&larger)[kRowTiles][2]) { join_maxima(larger); });
    share_probabilities();
    value_product(stage);
    if constexpr (Spec::kStages == 2) stage ^= 1;
  }

  ONEPASS_DEVICE void run(char* shared) {
    if (!take_work()) return;
    k_base = key_base(p.k);
    v_base = key_base(p.v);
    band = key_band(static_cast<MaskKind>(p.mask_kind), p.window_left, p.window_right, seq.seqlen_q,
                                  seq.seqlen_k);
    const int row_end = min(row0 + Spec::kTileM, seq.seqlen_q * pack());
    const int query_begin = query_of(row0), query_end = query_of(row_end - 1) + 1;
    const KeyRange keys = visible_keys(band, seq.seqlen_k, query_begin, query_end);
    key_begin = static_cast<int>(keys.begin);
    key_end = static_cast<int>(keys.end);
    const TileRange range = tile_range(band, seq.seqlen_k, query_begin, query_end, Spec::kTileN);
    int n_block_min = static_cast<int>(range.n_block_min), n_block_max = static_cast<int>(range.n_block_max);
    int full_min = static_cast<int>(range.n_block_full_min), full_max = static_cast<int>(range.n_block_full_max);
    if constexpr (Spec::kSplit) {
      const int blocks = (n_block_max - n_block_min + p.num_splits - 1) / p.num_splits;
      const int begin = min(n_block_max, n_block_min + split_idx * blocks);
      n_block_max = min(n_block_max, begin + blocks);
      n_block_min = begin;
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
      load_queries();
      load_keys(n_block_max - 1, 0);
      cp_async_commit();
      if constexpr (Spec::kStages == 2) {
        load_values(n_block_max - 1, 0);
        cp_async_commit();
        cp_async_wait<1>();
      } else {
        cp_async_wait<0>();
      }
      __syncthreads();
      keep_queries();
      int stage = 0;
      for (int n_block = n_block_max - 1; n_block >= n_block_min; --n_block) {
        step(n_block, n_block_min, n_block < full_min || n_block >= full_max, stage);
      }
      cp_async_wait<0>();
    }
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
          Uint32* line = reinterpret_cast<Uint32*>(shared + (row - row0) * kPitchV + 2 * warp_column) + (lane & 3);
#pragma unroll
          for (int n = 0; n < kOutTiles; ++n) {
            line[4 * n] =
                ElementTraits<Element>::pack(o[t][n][2 * r] * result.factor, o[t][n][2 * r + 1] * result.factor);
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
  ONEPASS_DEVICE void store_rows(const char* shared) const {
    constexpr int kPieces = Spec::kHeadDimV * 2 / Spec::kStoreBytes;
    static_assert(kPieces * Spec::kStoreBytes == Spec::kHeadDimV * 2, "a row is whole pieces");
    const int first = warp % kColumnGroups * 32 + lane;
    for (int idx = first; idx < kWarpRows * kPieces; idx += 32 * kColumnGroups) {
      const int local = warp_row + idx / kPieces, piece = idx % kPieces;
      const int row = row0 + local;
      if (row >= seq.seqlen_q * pack()) break;
      char* out = reinterpret_cast<char*>(static_cast<unsigned short*>(p.o.data) + row_offset(p.o, row)) +
                  piece * Spec::kStoreBytes;
      const char* in = shared + local * kPitchV + piece * Spec::kStoreBytes;
      if constexpr (Spec::kStoreBytes == 16) {
        *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(in);
      } else if constexpr (Spec::kStoreBytes == 4) {
        *reinterpret_cast<Uint32*>(out) = *reinterpret_cast<const Uint32*>(in);
      } else {
        *reinterpret_cast<unsigned short*>(out) = *reinterpret_cast<const unsigned short*>(in);
      }
    }
  }

  /// Normalised f32 partial result; its row index counts (batch, head, row) or, packed, (head, packed row).
  ONEPASS_DEVICE void store_split_row(int row, RowResult result, int t, int r) const {
    const bool packed = p.cu_seqlens_q.data != nullptr;
    const Index64 rows_per_head = packed ? p.total_q : p.seqlen_q;
    const Index64 head_index = (packed ? 0 : static_cast<Index64>(batch_idx) * p.num_heads_q) + head_of(row);
    const Index64 num_rows = rows_per_head * p.num_heads_q * (packed ? 1 : p.batch);
    const Index64 index = split_idx * num_rows + head_index * rows_per_head + seq.q_row0 + query_of(row);
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
