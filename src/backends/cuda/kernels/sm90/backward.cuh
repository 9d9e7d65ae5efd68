// sm90/backward.cuh - attention backward on Hopper
//
// Problem    dV = P^T dO, dS = P (dO V^T - delta), dK = scale dS^T Q, dQ = scale dS K with P computed again
//            from Q, K and lse; bf16 or f16 in, f32 sums; grouped heads, dense or packed; causal masks and
//            windows. backward_prepare.cuh comes before, backward_finish.cuh after
// Tile       kTileN keys of one key head, whose dK and dV stay in registers over all query heads of its group;
//            a step is kTileM queries. A persistent block draws tiles from a ticket
// Roles      warpgroup 0: one thread draws tiles and issues the copies; two others, by turns of a step, add dQ to
//            global memory. Warpgroups 1 and 2: 64 keys each of S^T = K Q^T, dP^T = V dO^T, dV and dK, all but
//            the first two with P^T, dS^T in registers; of dQ = dS K each half of the columns (kTileM 64) or of
//            the rows (128), with dS of both through shared memory. They take turns with the tensor cores:
//            one's products run while the other makes P and dS
// Wide       past head_dim 128 (kTileN 64): both warpgroups have all keys and half of the columns of dV, dK and dQ,
//            and both make S and dP; one thread adds dQ
// Pipeline   kStages of Q and lse, dO and delta, and dQ, two of dS. A step: P and dS; the turn; products of dQ, dV
//            and dK, and dQ leaves under the last two; S of the next step behind them, and dP; the turn goes to
//            the other. dQ is of this step in the second warpgroup and of the one before in the first, which is
//            ahead. Nothing is in flight at the edge of the loop, and only S where dP is issued: else ptxas
//            serialises the products. Wide heads: no turns, a barrier of both in each step
// dQ         f32 sums in global memory, in the order of the products' registers, added by the tensor memory
//            accelerator 16 KB or more at a time. Order: backward_tiles.cuh; who adds first stores instead
// Declines   score terms, a scale that is not positive, head dims past 256 (heuristics_sm90_backward.cpp)
// Shared     backward_layout.h; all tiles in blocks of 64 columns with the 128-byte swizzle
// Registers  per consumer thread: dK head_dim / 2, dV head_dim_v / 2, S and dP kTileM / 2 each; dQ in those of S,
//            P and dS packed kTileM / 4 each. Wide: half of dK and dV
// Numerics   P and dS are rounded to the inputs' type for the products; keys past the end are -inf in S
// Sources    Dao 2023 (arXiv:2307.08691), algorithm 2; Shah et al. 2024 (arXiv:2407.08608), section 3.1
#pragma once

#include "common/sequence.cuh"
#include "common/tile_range.h"
#include "common/uniform.cuh"
#include "params.h"
#include "ptx/barrier.cuh"
#include "ptx/bulk.cuh"
#include "ptx/global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/special.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/backward_layout.h"
#include "sm90/backward_tiles.cuh"
#include "sm90/ring.cuh"
#include "sm90/row_store.cuh"

namespace onepass::cuda {

template <class Spec>
struct BackwardSm90 {
  using Element = typename Spec::Element;
  static constexpr int kTileM = Spec::kTileM, kTileN = Spec::kTileN;
  static constexpr int kThreads = 384;
  static constexpr BackwardSm90Layout<int> kAt =
      backward_sm90_layout<int>(kTileM, kTileN, Spec::kHeadDim, Spec::kHeadDimV);
  static constexpr int kSharedBytes = kAt.end;
  // Wide heads: both warpgroups have the same keys, and each half of the columns of dK, dV and dQ.
  static constexpr bool kWide = kTileN == kBackwardWideKeys;
  static constexpr int kStages = backward_stages(kTileN);
  static constexpr int kColumns = backward_columns(Spec::kHeadDim, kTileN);
  static constexpr int kColumnsV = backward_columns(Spec::kHeadDimV, kTileN);
  static constexpr int kKeyBytes = kTileN * kColumns * 2, kValueBytes = kTileN * kColumnsV * 2;
  static constexpr int kQueryBytes = kTileM * kColumns * 2, kOutBytes = kTileM * kColumnsV * 2;
  static constexpr int kScoreBytes = kTileM * kTileN * 2;
  static constexpr int kRowBytes = kTileM * 4;       // of lse or delta
  static constexpr bool kSplitRows = kTileM == 128;  // of dQ, between the warpgroups
  static constexpr int kDqRegisters = kSplitRows ? Spec::kHeadDim / 2 : kColumns / 4;
  static constexpr int kDqHalfBytes = kDqRegisters * 128 * 4;
  static constexpr int kDqFloats = 2 * kDqRegisters * 128;
  static constexpr int kDkRegisters = (kWide ? kColumns / 2 : Spec::kHeadDim) / 2;
  static constexpr int kDvRegisters = (kWide ? kColumnsV / 2 : Spec::kHeadDimV) / 2;
  static constexpr bool kAhead = !kWide;  // S of the next step is issued before this one's end
  static constexpr int kClearing = kWide ? 256 : 128;  // threads that clear what no pair needs
  static constexpr bool kKeeps = kAhead && kTileM == 64;  // what steps ask of the tile and of lse
  // What setmaxnreg hands out: together the block's share at launch.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static constexpr int kRowShift = 20;
  enum NamedBarrier { kScores = 1, kClear, kGroup, kTurn = kGroup + 2 };  // kGroup, kTurn: one of each warpgroup

  static_assert(kWide ? kTileM == 64 : kTileN == 128 && (kTileM == 64 || kTileM == 128),
                "two warpgroups share a step like this");
  static_assert(Spec::kHeadDim % 8 == 0 && Spec::kHeadDimV % 8 == 0, "rows are whole 16-byte pieces");
  static_assert(kSplitRows || kColumns / kBlockColumns % 2 == 0,
                "each warpgroup has whole blocks of 64 columns of dQ");
  static_assert(Spec::kMaskEnd || !Spec::kMaskBegin, "a window masks both ends of a row's keys");

  /// Of a tile, in queries: what a step asks that begins at row0.
  struct StepBounds {
    int cleared_below, cleared_beyond;  // queries that see no key of the tile lie outside
    int whole_from, whole_to;           // row0 of steps without a pair to mask
    int keys;                           // of the tile, in the sequence
  };

  using Places = BackwardTile[kBackwardWorkPlaces];
  struct Barriers {
    Uint64 q_full[kStages], q_empty[kStages], dout_full[kStages], dout_empty[kStages], dq_full[kStages],
        dq_empty[kStages],
        work_full[kBackwardWorkPlaces], work_empty[kBackwardWorkPlaces], work_wanted, k_full, v_full,
        kv_empty;
    Places work;
  };
  static_assert(kAt.barriers + sizeof(Barriers) == kSharedBytes, "backward_layout.h counts them");

  const Sm90BackwardParams& all;
  const ForwardParams& p;
  Uint32 shared_base;
  Barriers& barriers;
  Round<kStages> at;  // of the step
  Round<kBackwardWorkPlaces> work_at;

  // Of a consumer.
  int consumer;  // index of the warpgroup
  int row0;      // of the step
  Uint32 descriptor_base;
  Uint32 places;  // two in one register: where the lane's dS goes, and (kRowShift) bytes to the thread's first row
  StepBounds bounds;  // of the tile, with kKeeps
  float s[kTileM / 2], dp[kTileM / 2];
  float dk[kDkRegisters], dv[kDvRegisters];
  Uint32 probabilities[kTileM / 4], dscores[kTileM / 4];
  float2 lse[kTileM / 8];  // of the step, with kKeeps

  ONEPASS_DEVICE BackwardSm90(const Sm90BackwardParams& params, char* shared)
      : all(params),
        p(params.backward.forward),
        barriers(*reinterpret_cast<Barriers*>(shared + kAt.barriers)) {
    shared_base = shared_address(shared);
  }

  ONEPASS_DEVICE void init_barriers() {
    constexpr int kWarps = 8, kSingles = 1 + kStages;  // the producer and those that add dQ
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&barriers.q_full[i], 1);
      mbarrier_init(&barriers.q_empty[i], kWarps);
      mbarrier_init(&barriers.dout_full[i], 1);
      mbarrier_init(&barriers.dout_empty[i], kWarps);
      mbarrier_init(&barriers.dq_full[i], kWarps);
      mbarrier_init(&barriers.dq_empty[i], 1);
    }
    for (int i = 0; i < kBackwardWorkPlaces; ++i) {
      mbarrier_init(&barriers.work_full[i], 1);
      mbarrier_init(&barriers.work_empty[i], kWarps + kSingles);
    }
    mbarrier_init(&barriers.work_wanted, 1);
    mbarrier_init(&barriers.k_full, 1);
    mbarrier_init(&barriers.v_full, 1);
    mbarrier_init(&barriers.kv_empty, kWarps);
    fence_mbarrier_init();
  }

  ONEPASS_DEVICE Uint32 at_byte(int offset) const { return shared_base + static_cast<Uint32>(offset); }

  /// Whether there is another tile; it stays in shared memory until the reader has arrived at work_empty.
  ONEPASS_DEVICE bool more_work() const {
    mbarrier_wait(&barriers.work_full[work_at.index()], work_at.parity());
    return barriers.work[work_at.index()].exists != 0;
  }

  // ---- producer

  template <int kDim, int kRows>
  ONEPASS_DEVICE static void load(const TensorMap& map, Uint64* full, Uint32 shared, int row, int head,
                                  int batch_idx, Uint64 l2_hint) {
#pragma unroll
    for (int block = 0; block < backward_columns(kDim, kTileN) / kBlockColumns; ++block) {
      tma_load(map, full, shared + block * kRows * 128, block * kBlockColumns, row, head, batch_idx, l2_hint);
    }
  }

  ONEPASS_DEVICE void load_keys(const BackwardTile& tile) const {
    const int batch_idx = p.cu_seqlens_k.data != nullptr ? 0 : tile.batch_idx;
    const int row = tile.seq.k_row0 + tile.n_block * kTileN;
    mbarrier_wait(&barriers.kv_empty, (work_at.count & 1) ^ 1);
    mbarrier_arrive_expect(&barriers.k_full, kKeyBytes);
    load<Spec::kHeadDim, kTileN>(all.k, &barriers.k_full, at_byte(kAt.keys), row, tile.head, batch_idx,
                                 kEvictFirst);
    mbarrier_arrive_expect(&barriers.v_full, kValueBytes);
    load<Spec::kHeadDimV, kTileN>(all.v, &barriers.v_full, at_byte(kAt.values), row, tile.head, batch_idx,
                                  kEvictFirst);
  }

  ONEPASS_DEVICE void load_step(const BackwardTile& tile, int head, int m_block) {
    const int batch_idx = p.cu_seqlens_q.data != nullptr ? 0 : tile.batch_idx;
    const int head_q = tile.head * p.group.divisor + head, row = tile.seq.q_row0 + m_block * kTileM;
    const Index64 block = tile.row_block0 + head * all.blocks_per_head + m_block;
    mbarrier_wait(&barriers.q_empty[at.index()], at.parity() ^ 1);
    Uint64* full = &barriers.q_full[at.index()];
    mbarrier_arrive_expect(full, kQueryBytes + kRowBytes);
    load<Spec::kHeadDim, kTileM>(all.q, full, at_byte(kAt.queries) + at.index() * kQueryBytes, row, head_q,
                                 batch_idx, kEvictLast);
    bulk_load(full, at_byte(kAt.lse) + at.index() * kRowBytes, all.backward.lse_log2 + block * kTileM,
              kRowBytes);
    mbarrier_wait(&barriers.dout_empty[at.index()], at.parity() ^ 1);
    full = &barriers.dout_full[at.index()];
    mbarrier_arrive_expect(full, kOutBytes + kRowBytes);
    load<Spec::kHeadDimV, kTileM>(all.dout, full, at_byte(kAt.dout) + at.index() * kOutBytes, row, head_q,
                                  batch_idx, kEvictLast);
    bulk_load(full, at_byte(kAt.delta) + at.index() * kRowBytes, all.backward.delta + block * kTileM,
              kRowBytes);
    at.advance();
  }

  /// One thread. A number is drawn when all copies of the tile before are issued, so that tiles go to blocks
  /// that will be free soon.
  ONEPASS_DEVICE void schedule() {
    for (;;) {
      const int number = static_cast<int>(atomicAdd(all.ticket, 1u));
      mbarrier_wait(&barriers.work_empty[work_at.index()], work_at.parity() ^ 1);
      BackwardTile& tile = barriers.work[work_at.index()];
      const bool exists = number < all.num_tiles;
      if (exists && !find_backward_tile<Spec>(all, number, tile)) continue;
      tile.exists = exists;
      tile.first_step = at.count;
      if (exists) at.count += p.group.divisor * max(tile.m_max - tile.m_min, 0);
      mbarrier_arrive(&barriers.work_full[work_at.index()]);
      if (!exists) return;
      mbarrier_wait(&barriers.work_wanted, work_at.count & 1);
      work_at.advance();
    }
  }

  /// One thread.
  ONEPASS_DEVICE void produce() {
    for (; more_work(); work_at.advance()) {
      const BackwardTile& tile = barriers.work[work_at.index()];
      load_keys(tile);
      walk_steps(tile, p.group.divisor, [&](int head, int m_block) { load_step(tile, head, m_block); });
      mbarrier_arrive(&barriers.work_empty[work_at.index()]);
      mbarrier_arrive(&barriers.work_wanted);
    }
  }

  // ---- dQ

  /// One thread for each stage.
  ONEPASS_DEVICE void add_dq(int stage) {
    const Uint32 source = at_byte(kAt.dq) + stage * 2 * kDqHalfBytes;
    for (; more_work(); work_at.advance()) {
      const BackwardTile& tile = barriers.work[work_at.index()];
      walk_steps(tile, p.group.divisor, [&](int head, int m_block) {
        if (at.index() == stage) {
          const Index64 block = tile.row_block0 + head * all.blocks_per_head + m_block;
          const int turn = turn_of<Spec>(tile, m_block);
          wait_for_count(all.turns + block, turn);
          fence_proxy_async_all();
          mbarrier_wait(&barriers.dq_full[stage], at.parity());
          // Of what the consumers stored: their arrivals order it before this, and one fence on the way to
          // the copy is what the memory model asks for (PTX ISA 8.9.2, proxy-preserved causality order).
          fence_proxy_async();
          float* const sums = all.dq_sums + block * kDqFloats;
          if (turn == 0) {
            bulk_store(sums, source, 2 * kDqHalfBytes);
          } else {
            bulk_add(sums, source, 2 * kDqHalfBytes);
          }
          bulk_commit();
          bulk_wait_read();
          mbarrier_arrive(&barriers.dq_empty[stage]);
          bulk_wait();
          fence_proxy_async_all();
          raise_count(all.turns + block, turn + 1);
        }
        at.advance();
      });
      mbarrier_arrive(&barriers.work_empty[work_at.index()]);
    }
  }

  // ---- consumers

  ONEPASS_DEVICE static int lane() { return static_cast<int>(threadIdx.x) & 31; }
  /// One arrival for each warp, for what all its lanes have done.
  ONEPASS_DEVICE static void release(Uint64* barrier) {
    __syncwarp();
    if (lane() == 0) mbarrier_arrive(barrier);
  }
  /// Low word of the matrix descriptor of a byte of shared memory.
  ONEPASS_DEVICE Uint32 descriptor(int offset, int block_bytes) const {
    return descriptor_base + static_cast<Uint32>(offset / 16) + (static_cast<Uint32>(block_bytes / 16) << 16);
  }
  /// Bytes from a warpgroup's keys, of a block of columns, to the next's.
  static constexpr int kOwnKeys = kWide ? 0 : 64 * 128;

  /// First of the thread's keys of the tile; the other is eight below. Asked for where few steps need it.
  ONEPASS_DEVICE static int own_key() {
    const Uint32 thread = static_cast<Uint32>(thread_index_again()) - 128;
    return static_cast<int>((kWide ? thread / 32 % 4 : thread / 32) * 16 + thread % 32 / 4);
  }
  /// The thread's first query of a step; it has this one and the next of every eight.
  ONEPASS_DEVICE static int own_row() { return 2 * (thread_index_again() & 3); }

  /// Whether this warpgroup clears rows. One that is ahead does for both: the other's turn comes after.
  ONEPASS_DEVICE bool clears() const { return kWide || consumer == 0; }

  /// Rows of a tile in shared memory outside [begin, end) become zeros: what no pair of the tile needs must not
  /// get into the others, whatever it holds (0 * NaN). All that clear (kClearing).
  template <int kDim, int kRows>
  ONEPASS_DEVICE static void clear_rows(Uint32 shared, int begin, int end) {
    if (begin <= 0 && end >= kRows) return;
#pragma unroll 1  // rare
    for (int piece = thread_index_again() - 128; piece < kRows * column_blocks(kDim) * 8; piece += kClearing) {
      const int row = piece / 8 % kRows;  // of 16 bytes
      if (row < begin || row >= end) store_shared(shared + piece * 16, uint4{0, 0, 0, 0});
    }
    fence_proxy_async();
    named_barrier_sync(kClear, kClearing);
  }

  /// Read from the tile where they are used, unless registers are there to keep them: between the last product of
  /// a step and the first of the next, nothing hides the latency of shared memory.
  ONEPASS_DEVICE StepBounds bounds_of(const BackwardTile& tile) const {
    if constexpr (kKeeps) return bounds;
    return find_bounds(tile);
  }
  ONEPASS_DEVICE StepBounds find_bounds(const BackwardTile& tile) const {
    const int key0 = tile.n_block * kTileN, keys = tile.seq.seqlen_k - key0;
    const int rows = p.cu_seqlens_q.data != nullptr ? p.total_q - tile.seq.q_row0 : p.seqlen_q;
    int seeing_end = tile.seq.seqlen_q, whole_from = 0, whole_to = kMostCountedRows;
    if constexpr (Spec::kMaskEnd) whole_from = key0 + kTileN - 1 - tile.band_upper;
    if constexpr (Spec::kMaskBegin) {
      seeing_end = min(seeing_end, key0 + min(kTileN, keys) - tile.band_lower);
      whole_to = key0 - (kTileM - 1) - tile.band_lower;
    }
    return {Spec::kMaskEnd ? key0 - tile.band_upper : 0,
            seeing_end < rows ? seeing_end : kMostCountedRows,  // zeros lie past the tensor
            keys < kTileN ? kMostCountedRows : whole_from, whole_to, keys};
  }
  ONEPASS_DEVICE void keep_bounds(const BackwardTile& tile) {
    const StepBounds found = find_bounds(tile);
    bounds = {uniform(found.cleared_below), uniform(found.cleared_beyond), uniform(found.whole_from),
              uniform(found.whole_to), uniform(found.keys)};
  }

  /// Of the step's queries, those that see a key of the tile stay.
  template <int kDim>
  ONEPASS_DEVICE void clear_queries(const BackwardTile& tile, Uint32 shared) const {
    if (!clears()) return;
    const StepBounds of = bounds_of(tile);
    clear_rows<kDim, kTileM>(shared, of.cleared_below - row0, of.cleared_beyond - row0);
  }

  /// Of the tile's keys, those that a query sees stay.
  template <int kDim>
  ONEPASS_DEVICE void clear_keys(const BackwardTile& tile, Uint32 shared) const {
    if (!clears()) return;
    const int key0 = tile.n_block * kTileN;
    const int rows = (p.cu_seqlens_k.data != nullptr ? p.total_k - tile.seq.k_row0 : p.seqlen_k);
    int seen_end = tile.seq.seqlen_k;
    if constexpr (Spec::kMaskEnd) seen_end = min(seen_end, tile.seq.seqlen_q + tile.band_upper);
    clear_rows<kDim, kTileN>(shared, Spec::kMaskBegin ? tile.band_lower - key0 : 0,
                             (seen_end < rows ? seen_end : kMostCountedRows) - key0);
  }

  /// Q of a step that begins at row0, until it is there.
  ONEPASS_DEVICE void await_queries(const BackwardTile& tile, Round<kStages> step) {
    mbarrier_wait(&barriers.q_full[step.index()], step.parity());
    clear_queries<Spec::kHeadDim>(tile, at_byte(kAt.queries) + step.index() * kQueryBytes);
    if constexpr (kKeeps) load_lse(step.index());
  }
  /// S^T of the step, issued.
  ONEPASS_DEVICE void start_scores(Round<kStages> step) {
    forget(s);
    wgmma_fence();
    Spec::score_product(s, descriptor(kAt.keys + consumer * kOwnKeys, 16),
                        descriptor(kAt.queries + step.index() * kQueryBytes, 16));
    wgmma_commit();
  }

  ONEPASS_DEVICE float2 load_row_pair(int rows, int stage, int i) const {
    const Uint32 own = kKeeps ? places >> kRowShift : own_row() * 4;
    return load_shared_pair(at_byte(rows) + own + stage * kRowBytes + i * 32);
  }
  ONEPASS_DEVICE void load_lse(int stage) {
#pragma unroll
    for (int i = 0; i < kTileM / 8; ++i) lse[i] = load_row_pair(kAt.lse, stage, i);
  }

  /// Whether some query of the step does not see some key of the tile.
  ONEPASS_DEVICE bool is_masked(const BackwardTile& tile) const {
    const StepBounds of = bounds_of(tile);
    return row0 < of.whole_from || (Spec::kMaskBegin && row0 > of.whole_to);
  }

  /// -inf where the query does not see the key.
  ONEPASS_DEVICE void mask_scores(const BackwardTile& tile) {
    const StepBounds of = bounds_of(tile);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = own_key() + 8 * r, first = row0 + own_row();
      int begin = Spec::kMaskEnd ? of.cleared_below + key - first : 0;
      const int end = Spec::kMaskBegin ? of.whole_to + kTileM + key - first : kTileM;
      if (key >= of.keys) begin = kTileM;
#pragma unroll
      for (int i = 0; i < kTileM / 4; ++i) {
        const int row = 8 * (i >> 1) + (i & 1);
        if (row < begin || (Spec::kMaskBegin && row >= end)) s[4 * (i >> 1) + 2 * r + (i & 1)] = -infinity();
      }
    }
  }

  ONEPASS_DEVICE void pack_probabilities() {
#pragma unroll
    for (int i = 0; i < kTileM / 4; ++i)
      probabilities[i] = ElementTraits<Element>::pack(s[2 * i], s[2 * i + 1]);
  }

  /// P and dP of the step, in f32. Its Q is there; with kAhead its S is in flight before; nothing is after.
  ONEPASS_DEVICE void make_probabilities(const BackwardTile& tile) {
    if constexpr (!kAhead) start_scores(at);
    mbarrier_wait(&barriers.dout_full[at.index()], at.parity());
    clear_queries<Spec::kHeadDimV>(tile, at_byte(kAt.dout) + at.index() * kOutBytes);
    forget(dp);
    wgmma_fence();
    Spec::dprobability_product(dp, descriptor(kAt.values + consumer * kOwnKeys, 16),
                               descriptor(kAt.dout + at.index() * kOutBytes, 16));
    wgmma_commit();
    if constexpr (!kWide) give_turn();
    wgmma_wait<1>();
    pin(s);
    if (is_masked(tile)) mask_scores(tile);
#pragma unroll
    for (int i = 0; i < kTileM / 8; ++i) {
      const float2 of_rows = kKeeps ? lse[i] : load_row_pair(kAt.lse, at.index(), i);
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        s[4 * i + r] = exp2_approx(fmaf(s[4 * i + r], p.softmax_scale_log2, -of_rows.x));
        s[4 * i + r + 1] = exp2_approx(fmaf(s[4 * i + r + 1], p.softmax_scale_log2, -of_rows.y));
      }
    }
    wgmma_wait<0>();
    pin(dp);
  }

  /// The tensor cores are this warpgroup's: the other makes P and dS of its keys meanwhile. Also orders what one
  /// wrote into shared memory before it passed the turn.
  ONEPASS_DEVICE void take_turn() const { named_barrier_sync(kTurn + consumer, 256); }
  ONEPASS_DEVICE void give_turn() const { named_barrier_arrive(kTurn + (consumer ^ 1), 256); }

  ONEPASS_DEVICE static int score_stage(Round<kStages> step) { return step.count & 1; }

  /// What the lane addresses of dS, which is queries x keys in shared memory: a warp's 16 keys are two pieces of
  /// 16 bytes of a row.
  ONEPASS_DEVICE Uint32 find_dscores_address() const {
    const Uint32 thread = threadIdx.x, matrix = thread / 8 % 4;
    const Uint32 query = matrix / 2 * 8 + thread % 8, piece = thread / 32 % 4 * 2 + matrix % 2;
    return at_byte(kAt.dscores) + (kWide ? 0 : consumer * kTileM * 128) + query * 128 +
           (piece ^ query % 8) * 16;
  }

  ONEPASS_DEVICE void make_dscores() {
#pragma unroll
    for (int i = 0; i < kTileM / 8; ++i) {
      const float2 delta = load_row_pair(kAt.delta, at.index(), i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int e = 4 * i + 2 * r;
        dscores[2 * i + r] =
            ElementTraits<Element>::pack(s[e] * (dp[e] - delta.x), s[e + 1] * (dp[e + 1] - delta.y));
      }
    }
    const Uint32 target = (places & ((1u << kRowShift) - 1)) + score_stage(at) * kScoreBytes;
#pragma unroll
    for (int k = 0; k < kTileM / 16; ++k) {
      const bool own = !kWide || k / (kTileM / 32) == consumer;  // of what both have made
      if (own) stmatrix_x4_trans(target + k * 2048, dscores + 4 * k);
    }
    fence_proxy_async();
  }
  /// Of the step before the first: the first warpgroup makes a dQ of it that nobody uses, since ptxas serialises
  /// products that are not always made.
  ONEPASS_DEVICE void clear_dscores() const {
    const Uint32 target = at_byte(kAt.dscores) + (kBackwardScoreStages - 1) * kScoreBytes;
#pragma unroll 1
    for (int piece = thread_index_again() - 128; piece < kScoreBytes / 16; piece += 256)
      store_shared(target + piece * 16, uint4{0, 0, 0, 0});
    fence_proxy_async();
  }

  /// Of a tile whose columns the warpgroups divide.
  ONEPASS_DEVICE int own_half(int bytes) const { return kWide ? consumer * (bytes / 2) : 0; }

  ONEPASS_DEVICE void start_dv() {
    pin(dv);
    pin(probabilities);
    wgmma_fence();
    Spec::dv_product(dv, probabilities,
                     descriptor(kAt.dout + at.index() * kOutBytes + own_half(kOutBytes), kTileM * 128), 1);
    wgmma_commit();
  }
  ONEPASS_DEVICE void finish_dv() {
    pin(dv);
    pin(probabilities);
    release(&barriers.dout_empty[at.index()]);
  }
  ONEPASS_DEVICE void start_dk() {
    pin(dk);
    pin(dscores);
    wgmma_fence();
    Spec::dk_product(dk, dscores,
                     descriptor(kAt.queries + at.index() * kQueryBytes + own_half(kQueryBytes), kTileM * 128), 1);
    wgmma_commit();
  }
  ONEPASS_DEVICE void start_dq(float (&dq)[kDqRegisters], Round<kStages> step) {
    forget(dq);
    wgmma_fence();
    const int own_rows = kSplitRows ? consumer * 64 * 128 : 0;
    const int own_columns = kSplitRows ? 0 : consumer * (kDqRegisters / 32) * kTileN * 128;
    Spec::dq_product(dq, descriptor(kAt.dscores + score_stage(step) * kScoreBytes + own_rows, 16),
                     descriptor(kAt.keys + own_columns, kTileN * 128));
    wgmma_commit();
  }

  /// To shared memory, from where the dQ writer of the stage takes it.
  ONEPASS_DEVICE void hand_over_dq(const float (&dq)[kDqRegisters], Round<kStages> step) {
    mbarrier_wait(&barriers.dq_empty[step.index()], step.parity() ^ 1);
    const Uint32 own = at_byte(kAt.dq) + consumer * kDqHalfBytes + (thread_index_again() & 127) * 16;
    const Uint32 target = own + step.index() * 2 * kDqHalfBytes;
#pragma unroll
    for (int i = 0; i < kDqRegisters / 4; ++i)
      store_shared(target + i * 2048, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    release(&barriers.dq_full[step.index()]);
  }

  /// The step whose dQ the warpgroup makes at this one: the first does not wait for dS of the second, a turn behind.
  ONEPASS_DEVICE Round<kStages> dq_step() const { return {at.count - 1 + consumer}; }

  /// The products of a step whose P and dP are there. S of the next one is in flight after, unless this is the
  /// last; row0 is that one's.
  template <bool kLast>
  ONEPASS_DEVICE void multiply(const BackwardTile& tile) {
    const Round<kStages> of_dq = dq_step();
    const bool has_dq = of_dq.count >= tile.first_step;
    make_dscores();
    pack_probabilities();
    if constexpr (!kKeeps) start_dv();
    take_turn();
    float dq[kDqRegisters];
    start_dq(dq, of_dq);
    if constexpr (kKeeps) start_dv();
    start_dk();
    wgmma_wait<kKeeps ? 2 : 1>();
    pin(dq);
    if constexpr (!kKeeps) finish_dv();
    if (has_dq) hand_over_dq(dq, of_dq);
    named_barrier_sync(kGroup + consumer, 128);  // all warps have read what the next step's dS replaces
    Round<kStages> next = at;
    next.advance();
    if constexpr (!kLast) await_queries(tile, next);
    if constexpr (!kLast) start_scores(next);
    if constexpr (kLast) give_turn();  // otherwise behind dP of the next
    wgmma_wait<kLast ? 0 : 1>();
    pin(dk);
    pin(dscores);
    if constexpr (kKeeps) finish_dv();
    release(&barriers.q_empty[at.index()]);
    at = next;
  }
  /// dQ of the last step of a tile, of the warpgroup that is a step behind with it.
  ONEPASS_DEVICE void multiply_rest() {
    if (consumer != 0) return;
    take_turn();
    float dq[kDqRegisters];
    start_dq(dq, dq_step());
    wgmma_wait<0>();
    pin(dq);
    hand_over_dq(dq, dq_step());
  }

  /// The same of wide heads: dV and dK come first, as dQ needs the registers of P and dS.
  template <bool kLast>
  ONEPASS_DEVICE void multiply_wide(const BackwardTile& tile) {
    make_dscores();
    pack_probabilities();
    start_dv();
    start_dk();
    named_barrier_sync(kScores, 256);
    wgmma_wait<0>();
    finish_dv();
    pin(dk);
    pin(dscores);
    release(&barriers.q_empty[at.index()]);
    float dq[kDqRegisters];
    start_dq(dq, at);
    wgmma_wait<0>();
    pin(dq);
    hand_over_dq(dq, at);
    at.advance();
    if constexpr (!kLast) await_queries(tile, at);
  }
  template <bool kLast>
  ONEPASS_DEVICE void multiply_step(const BackwardTile& tile) {
    if constexpr (kWide) {
      multiply_wide<kLast>(tile);
    } else {
      multiply<kLast>(tile);
    }
  }

  /// The tile, found again: no register holds its place over a walk.
  ONEPASS_DEVICE const BackwardTile& current_tile() const { return barriers.work[uniform(work_at.index())]; }

  /// To the first step of a query head. Returns how many it has.
  ONEPASS_DEVICE int start_head() {
    const BackwardTile& tile = current_tile();
    row0 = uniform((tile.descending ? tile.m_min : tile.m_max - 1) * kTileM);
    return uniform(tile.m_max - tile.m_min);
  }

  /// K and V of the tile are there.
  ONEPASS_DEVICE void walk(const BackwardTile& tile) {
    if constexpr (kKeeps) keep_bounds(tile);
    const int advance = uniform(tile.descending ? kTileM : -kTileM);
    int heads = p.group.divisor, steps = start_head();  // left
    clear_keys<Spec::kHeadDim>(tile, at_byte(kAt.keys));
    clear_keys<Spec::kHeadDimV>(tile, at_byte(kAt.values));
    if (!kWide && consumer != 0) take_turn();  // the first has it since the tile before
    await_queries(tile, at);
    if constexpr (kAhead) start_scores(at);
    make_probabilities(tile);
#pragma unroll 1
    for (;;) {
      row0 += advance;
      if (--steps == 0) {
        if (--heads == 0) break;
        steps = start_head();
      }
      multiply_step<false>(tile);
      make_probabilities(tile);
    }
    multiply_step<true>(tile);
    if constexpr (!kWide) multiply_rest();
  }

  /// The warpgroup's columns of a row; of wide heads the second may have zeros past the end.
  template <int kDim, class Packed>
  ONEPASS_DEVICE void store_own(unsigned short* row, bool inside, const Packed& packed) const {
    if constexpr (kWide) {
      constexpr int kFirst = backward_columns(kDim, kTileN) / 2;
      if (consumer == 0) {
        store_row<kFirst>(row, inside, packed);
      } else {
        store_row<kDim - kFirst>(row + kFirst, inside, packed);
      }
    } else {
      store_row<kDim>(row, inside, packed);
    }
  }

  ONEPASS_DEVICE void store(const BackwardTile& tile) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = tile.n_block * kTileN + own_key() + 8 * r;
      const bool inside = key < tile.seq.seqlen_k;
      const auto row_of = [&](const TensorParams& t) {
        return static_cast<unsigned short*>(t.data) + tile.batch_idx * t.batch_stride +
               (tile.seq.k_row0 + key) * t.row_stride + tile.head * t.head_stride;
      };
      store_own<Spec::kHeadDimV>(row_of(all.backward.dv), inside, [&](int i) {
        return ElementTraits<Element>::pack(dv[4 * i + 2 * r], dv[4 * i + 2 * r + 1]);
      });
      store_own<Spec::kHeadDim>(row_of(all.backward.dk), inside, [&](int i) {
        return ElementTraits<Element>::pack(dk[4 * i + 2 * r] * p.softmax_scale,
                                            dk[4 * i + 2 * r + 1] * p.softmax_scale);
      });
    }
  }

  ONEPASS_DEVICE void consume() {
    descriptor_base = shared_base >> 4;
    places = find_dscores_address() | static_cast<Uint32>(own_row()) * 4 << kRowShift;
    if constexpr (kKeeps) keep(places);
    for (; more_work(); work_at.advance()) {
      const BackwardTile& tile = barriers.work[work_at.index()];
#pragma unroll
      for (int i = 0; i < kDkRegisters; ++i) dk[i] = 0;
#pragma unroll
      for (int i = 0; i < kDvRegisters; ++i) dv[i] = 0;
      mbarrier_wait(&barriers.k_full, work_at.count & 1);
      mbarrier_wait(&barriers.v_full, work_at.count & 1);
      if (tile.m_min < tile.m_max) walk(tile);
      release(&barriers.kv_empty);
      store(current_tile());
      release(&barriers.work_empty[work_at.index()]);
    }
  }

  ONEPASS_DEVICE void run(char* /*shared*/) {
    const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
    if (threadIdx.x == 0) {
      if (shared_base % kSwizzleBytes != 0) __trap();  // the entry asks for this alignment
      init_barriers();
    }
    if (!kWide && warpgroup != 0) clear_dscores();
    __syncthreads();
    if (warpgroup == 0) {
      give_registers<kProducerRegisters>();
      const int warp = static_cast<int>(threadIdx.x) / 32;
      if (threadIdx.x % 32 != 0) return;
      if (warp == 0) schedule();
      if (warp == 1) produce();
      if (kStages == 2 ? warp >= 2 : warp == 2) add_dq(warp - 2);
    } else {
      take_registers<kConsumerRegisters>();
      consumer = warpgroup - 1;
      consume();
    }
  }
};

}  // namespace onepass::cuda
