// sm90/forward.cuh - attention forward on Hopper
//
// Problem    O = softmax(scale * Q K^T, masked) V and lse; bf16 or f16 in, f32 sums; dense, packed or paged;
//            head_dim a multiple of 8 up to 256; causal masks and windows; sinks. kScoreTerms: softcap,
//            ALiBi, bias, any scale
// Tile       kTileM query rows x kTileN keys of one query head; a persistent block walks tiles, and in each
//            its key blocks high to low
// Roles      warpgroup 0: one thread finds the tiles, another issues the copies of Q, K and V (tensor memory
//            accelerator). The other kTileM / 64 warpgroups own 64 rows each: S = Q K^T and O += P V by
//            wgmma, P in registers, the softmax between
// Pipeline   kStages buffers for K and for V, kQueryStages for Q, each with a full and an empty barrier. A
//            warpgroup issues Q K^T of block n-1 and P V of block n together and does the softmax of n-1
//            under P V; warpgroups take turns to issue, so that one's softmax runs under another's products.
//            kTwoProbabilities: it also packs P of n-1 under P V, into registers of its own.
//            The first product of the next tile is issued with the last P V of this one, and O is stored
//            under it
// Softmax    with maxima for a tile's first block, blocks with a mask and changed scores; the others are done
//            without, and once more where that was wrong (sm90/softmax.cuh)
// Order      no mask: tiles in turn. Otherwise groups of heads, whose keys stay in L2, longest rows first,
//            and tiles by a ticket. kRagged: sequence after sequence (ragged_tiles.cuh), by a ticket
// Pages      kPaged: the producer is a warp; each lane copies its part of a block, from the page that the
//            block table names for it
// Declines   splits, pages that a block of keys cannot be put together from (heuristics_sm90.cpp)
// Shared     layout.h; Q + stages * (K + V), all in blocks of 64 columns with the 128-byte swizzle
// Registers  per consumer thread: O head_dim_v / 2, S kTileN / 2, P kTileN / 4 or twice that; the producer
//            gives its own away
// Numerics   sm90/softmax.cuh; keys past the end are zeros in shared memory (V) and -inf in S
// Sources    Dao 2023 (arXiv:2307.08691), algorithm 1; Shah et al. 2024 (arXiv:2407.08608), sections 3.1, 3.2
#pragma once

#include "common/launch_count.cuh"
#include "common/score.cuh"
#include "common/sequence.cuh"
#include "common/tile_range.h"
#include "common/uniform.cuh"
#include "params.h"
#include "ptx/barrier.cuh"
#include "ptx/global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/layout.h"
#include "sm90/ragged_tiles.cuh"
#include "sm90/ring.cuh"
#include "sm90/row_store.cuh"
#include "sm90/softmax.cuh"
#include "sm90/warp_scores.cuh"

namespace onepass::cuda {

template <class Spec>
struct ForwardSm90 {
  using Element = typename Spec::Element;
  static constexpr int kConsumers = Spec::kTileM / 64;  // warpgroups
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kTileN = Spec::kTileN;
  static constexpr int kStages = Spec::kStages, kQueryStages = Spec::kQueryStages;
  static constexpr int kDimSteps = (Spec::kHeadDim + 15) / 16;  // k16 steps of Q K^T
  static constexpr int kQueryBytes = sm90_tile_bytes(Spec::kTileM, Spec::kHeadDim);
  static constexpr int kKeyBytes = sm90_tile_bytes(kTileN, Spec::kHeadDim);
  static constexpr int kValueBytes = sm90_tile_bytes(kTileN, Spec::kHeadDimV);
  static constexpr int kSharedBytes =
      sm90_shared_bytes(Spec::kTileM, kTileN, Spec::kHeadDim, Spec::kHeadDimV, kStages, kQueryStages);
  static constexpr bool kMasked = Spec::kMaskEnd;  // more than the end of the keys
  static constexpr bool kMaskBegin = Spec::kMaskBegin;
  static constexpr bool kPasses = kMasked && kConsumers == 3;
  // Warpgroups without rows let a tile go by; of three, not where that and a mask or pages exceed registers.
  static constexpr bool kIdles = Spec::kRagged && (kConsumers == 2 || (!kMasked && !Spec::kPaged));
  // Tiles end where a sequence does, and its first one begins before it: with a mask, the rows that are missing
  // there would see the fewest keys. Not where tiles that begin with it meet the diagonal in one key block.
  static constexpr bool kBeginsBefore = kMasked && Spec::kTileM % kTileN != 0;
  static constexpr int kFindAhead = 2;  // key blocks left after this one when the next tile is asked for
  // What setmaxnreg hands out: together the block's share at launch.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;
  enum NamedBarrier { kTurn = 1, kWarpgroup = kTurn + kConsumers };  // one for each warpgroup

  static_assert(Spec::kTileM % 64 == 0 && (kConsumers == 2 || kConsumers == 3),
                "registers are divided for these");
  static_assert(Spec::kHeadDim % 8 == 0 && Spec::kHeadDimV % 8 == 0, "rows are whole 16-byte pieces");
  static_assert(kConsumers == 2 || !Spec::kTwoProbabilities, "three warpgroups have no registers for both");
  static_assert(kStages >= 2 || !kPasses, "who passes over a block waits for the next one");
  static_assert(Spec::kTicket || !Spec::kRagged, "tiles of sequences differ in length");
  static_assert(Spec::kMaskEnd || !Spec::kMaskBegin, "a window masks both ends of a row's keys");
  static_assert(kTileN % 16 == 0, "products take 16 keys a step");
  static_assert(!Spec::kScoreTerms || !Spec::kTwoProbabilities, "a block with maxima has one set");

  /// One tile: where its rows and keys are.
  struct Work {
    int has_rows;  // 0: there is no tile, and none will come
    int batch_idx, head, row0;
    Sequence seq;
    int band_lower, band_upper;  // KeyBand in 32 bits
    int key_begin, key_end;      // keys that some row sees
    int n_min, n_max;            // key blocks, one at least
    int full_min, full_max;      // of them, those that every row sees whole
    int unseen;                  // bit i: no row of warpgroup i sees the first one that is walked
  };

  struct Barriers {
    Uint64 q_full[kQueryStages], q_empty[kQueryStages], k_full[kStages], k_empty[kStages], v_full[kStages],
        v_empty[kStages], work_full[kWorkPlaces], work_empty[kWorkPlaces], work_wanted;
    Work work[kWorkPlaces];
  };
  static_assert(sizeof(Work) == kWorkBytes && sizeof(Barriers) == sm90_barrier_bytes(kStages, kQueryStages),
                "layout.h counts them");

  const Sm90ForwardParams& all;
  const ForwardParams& p;
  Uint32 shared_q, shared_k, shared_v;
  char* values;  // shared_v as a pointer
  Barriers& barriers;
  RingPosition<kStages> k_at, v_at;
  RingPosition<kQueryStages> q_at;
  RingPosition<kWorkPlaces> work_at;  // of a consumer: of the next tile

  // Of a consumer.
  int consumer;  // index of the warpgroup
  int own_row;   // first of the thread's rows of a tile; the other is eight below
  int work_place;
  int n_min, full_min, full_max;  // of the tile, as in Work; the rest is read from shared memory
  int n;                          // key block whose P is next to be multiplied
  float s[kTileN / 2], o[Spec::kHeadDimV / 2];
  Uint32 probabilities[kTileN / 4];
  int accumulate;  // 0: the next product starts O anew
  BlockSoftmax<Element, kTileN, kConsumers == 3 ? 1 : 2> softmax;

  ONEPASS_DEVICE ForwardSm90(const Sm90ForwardParams& params, char* shared)
      : all(params),
        p(params.forward),
        barriers(*reinterpret_cast<Barriers*>(shared + kQueryStages * kQueryBytes +
                                              kStages * (kKeyBytes + kValueBytes))) {
    shared_q = shared_address(shared);
    shared_k = shared_q + kQueryStages * kQueryBytes;
    shared_v = shared_k + kStages * kKeyBytes;
    values = shared + kQueryStages * kQueryBytes + kStages * kKeyBytes;
  }

  ONEPASS_DEVICE void init_barriers() {
    constexpr int kWarps = 4 * kConsumers;
    for (int i = 0; i < kQueryStages; ++i) {
      mbarrier_init(&barriers.q_full[i], 1);
      mbarrier_init(&barriers.q_empty[i], kWarps);
    }
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&barriers.k_full[i], 1);
      mbarrier_init(&barriers.k_empty[i], kWarps);
      mbarrier_init(&barriers.v_full[i], 1);
      mbarrier_init(&barriers.v_empty[i], kWarps);
    }
    for (int i = 0; i < kWorkPlaces; ++i) {
      mbarrier_init(&barriers.work_full[i], 1);
      mbarrier_init(&barriers.work_empty[i], kWarps + 1);
    }
    mbarrier_init(&barriers.work_wanted, 1);
    fence_mbarrier_init();
  }

  // ---- tiles

  /// Whether the tile has rows; fills `found` then.
  ONEPASS_DEVICE bool locate(int tile, Work& found) const {
    int m_block, head;  // head: of all sequences
    if constexpr (kMasked) {
      const int group = all.group_tiles.quotient(tile), i = all.group_tiles.remainder(tile, group);
      const int rank = all.head_group.quotient(i);
      m_block = p.m_blocks.divisor - 1 - rank;
      head = group * all.head_group.divisor + all.head_group.remainder(i, rank);
      if (head >= p.batch * p.tile_heads.divisor) return false;  // the last group is filled up
    } else {
      head = p.m_blocks.quotient(tile);
      m_block = p.m_blocks.remainder(tile, head);
    }
    const int batch_idx = p.tile_heads.quotient(head);
    return describe(batch_idx, p.tile_heads.remainder(head, batch_idx), m_block, found);
  }

  /// Whether the tile has rows; fills `found` then.
  ONEPASS_DEVICE bool describe(int batch_idx, int head, int m_block, Work& found) const {
    const Sequence seq = sequence_at(p, batch_idx);
    int row0 = m_block * Spec::kTileM;
    if (row0 >= seq.seqlen_q) return false;
    if constexpr (kBeginsBefore) row0 -= (Spec::kTileM - seq.seqlen_q % Spec::kTileM) % Spec::kTileM;
    found.batch_idx = batch_idx;
    found.head = head;
    found.row0 = row0;
    found.seq = seq;
    BasicKeyBand<int> band{-kMostCountedRows, kMostCountedRows};
    if constexpr (kMasked) band = narrow_key_band(p, seq);
    found.band_lower = band.lower;
    found.band_upper = band.upper;
    const int row_begin = max(row0, 0), row_end = min(row0 + Spec::kTileM, seq.seqlen_q);
    const BasicKeyRange<int> keys = visible_keys(band, seq.seqlen_k, row_begin, row_end);
    found.key_begin = keys.begin;
    found.key_end = keys.end;
    const BasicTileRange<int> range = tile_range(band, seq.seqlen_k, row_begin, row_end, kTileN);
    const int n_max = max(range.n_block_min + 1, range.n_block_max);  // without keys: one block, masked
    found.n_min = range.n_block_min;
    found.n_max = n_max;
    found.full_min = range.n_block_full_min;
    found.full_max = range.n_block_full_max;
    found.unseen = 0;
    if constexpr (kPasses) {
#pragma unroll
      for (int i = 0; i < kConsumers; ++i) {
        const int last_row = min(row0 + 64 * i + 63, row_end - 1);
        if (last_row + band.upper < (n_max - 1) * kTileN && n_max - 1 > range.n_block_min)
          found.unseen |= 1 << i;
      }
    }
    return true;
  }

  /// Each block ends with a ticket that is too high, so as many are drawn as there are tiles; the last leaves
  /// the word to any later launch.
  ONEPASS_DEVICE int draw_ticket() const {
    const int count =
        static_cast<int>(atomicAdd(reinterpret_cast<unsigned*>(all.ticket), 1u));  // the low word
    if (!Spec::kRagged && count + 1 == all.num_tiles) free_count(all.ticket);
    return count + static_cast<int>(gridDim.x);
  }

  /// Of the phase of work_wanted that the loads of the tile at work_at end; there is one for each tile.
  ONEPASS_DEVICE int wanted_parity() const {
    static_assert(kWorkPlaces % 2 != 0, "from round to round a place alternates");
    return work_at.parity ^ (work_at.index & 1);
  }

  /// One thread finds the tiles and tells the others, each when the loads of the one before come close to
  /// their end. Only then it draws a ticket, so that tickets go to blocks that will be free soon; earlier
  /// where tiles are too short for that.
  ONEPASS_DEVICE void schedule() {
    if constexpr (Spec::kTicket) claim_count(all.ticket, all.launch_id);
    int tile = static_cast<int>(blockIdx.x);
    const bool early = !Spec::kTicket || all.draw_early != 0;
    for (;;) {
      mbarrier_wait(&barriers.work_empty[work_at.index], work_at.parity ^ 1);
      Work& found = barriers.work[work_at.index];
      const bool over = tile >= all.num_tiles;
      if (over || locate(tile, found)) {
        found.has_rows = !over;
        if (early)
          mbarrier_wait(&barriers.work_wanted, wanted_parity() ^ 1);  // the first one is over at once
        mbarrier_arrive(&barriers.work_full[work_at.index]);
        if (over) return;
        if (!early) mbarrier_wait(&barriers.work_wanted, wanted_parity());
        work_at.advance();
      }
      tile = Spec::kTicket ? draw_ticket() : tile + static_cast<int>(gridDim.x);
    }
  }

  /// The same by a warp, over the tiles that exist. How many these are, the last number tells that is too
  /// high.
  ONEPASS_DEVICE void schedule_ragged() {
    const bool leads = (threadIdx.x & 31) == 0;
    if (leads) claim_count(all.ticket, all.launch_id);
    RaggedTiles<Spec::kTileM, kMasked> tiles(p, all.head_group.divisor);
    const bool early = all.draw_early != 0;
    int tile = static_cast<int>(blockIdx.x);
    for (;;) {
      const bool over = !tiles.find(tile);
      if (leads) {
        mbarrier_wait(&barriers.work_empty[work_at.index], work_at.parity ^ 1);
        Work& found = barriers.work[work_at.index];
        found.has_rows = !over && describe(tiles.batch_idx, tiles.head, tiles.m_block, found);
        if (early) mbarrier_wait(&barriers.work_wanted, wanted_parity() ^ 1);
        mbarrier_arrive(&barriers.work_full[work_at.index]);
        if (over) {
          if (tile - static_cast<int>(gridDim.x) + 1 == tiles.num_tiles()) free_count(all.ticket);
        } else {
          if (!early) mbarrier_wait(&barriers.work_wanted, wanted_parity());
          tile = draw_ticket();
        }
      }
      if (over) return;
      work_at.advance();
      tile = __shfl_sync(0xffffffffu, tile, 0);
    }
  }

  /// Whether there is another tile; it stays in shared memory until leave_work.
  ONEPASS_DEVICE bool more_work() const {
    mbarrier_wait(&barriers.work_full[work_at.index], work_at.parity);
    return barriers.work[work_at.index].has_rows != 0;
  }
  ONEPASS_DEVICE void take_work() {
    work_place = work_at.index;
    const Work& tile = barriers.work[work_place];
    n_min = tile.n_min;
    full_min = tile.full_min;
    full_max = tile.full_max;
    work_at.advance();
  }
  ONEPASS_DEVICE void leave_work() const {
    __syncwarp();
    release(&barriers.work_empty[work_place]);
  }

  // ---- producer

  /// kRows rows that follow each other.
  template <int kDim, int kRows>
  ONEPASS_DEVICE void load(const TensorMap& map, Uint64* full, Uint32 shared, int row, int head,
                           int batch_idx, Uint64 l2_hint) const {
    mbarrier_arrive_expect(full, sm90_tile_bytes(kRows, kDim));
    copy_box<kDim, kRows>(map, full, shared, row, head, batch_idx, l2_hint);
  }

  /// A box of rows, the first of which lies at `shared` in a tile of kRows.
  template <int kDim, int kRows>
  ONEPASS_DEVICE static void copy_box(const TensorMap& map, Uint64* full, Uint32 shared, int row, int head,
                                      int batch_idx, Uint64 l2_hint) {
#pragma unroll
    for (int block = 0; block < column_blocks(kDim); ++block) {
      tma_load(map, full, shared + block * kRows * 128, block * kBlockColumns, row, head, batch_idx, l2_hint);
    }
  }

  /// Where this lane's part of a block of keys lies in the pool. One without a page becomes zeros: no row of
  /// the tile sees its keys, or the table names a page that the pool does not have.
  struct PagePart {
    int page, slot;
  };
  static constexpr int kNoPage = -1;  // outside the tensor map
  ONEPASS_DEVICE PagePart find_part(const int* table, int first_key, int key_begin, int key_end) const {
    const int own = lane() * all.page_box, key = first_key + own;
    if (own >= kTileN || key >= key_end || key + all.page_box <= key_begin) return {kNoPage, 0};
    const int column = p.page_size.quotient(key);
    const int page = table[column * p.table_page_stride];
    if (page < 0 || page >= p.num_pages) {
      *p.error_flag = static_cast<int>(KernelError::PageOutOfPool);
      return {kNoPage, 0};
    }
    return {page, p.page_size.remainder(key, column)};
  }

  /// A block of keys in parts of page_box rows, one a lane.
  template <int kDim>
  ONEPASS_DEVICE void load_parts(const TensorMap& map, Uint64* full, Uint32 shared, PagePart part,
                                 int head) const {
    if (lane() == 0) mbarrier_arrive_expect(full, sm90_tile_bytes(kTileN, kDim));
    __syncwarp();
    if (lane() * all.page_box < kTileN) {
      copy_box<kDim, kTileN>(map, full, shared + lane() * all.page_box * 128, part.slot, head, part.page,
                             kEvictLast);
    }
  }

  /// One thread or, of pages, a warp.
  ONEPASS_DEVICE void produce() {
    const bool leads = !Spec::kPaged || lane() == 0;
    while (more_work()) {
      const Work& tile = barriers.work[work_at.index];
      const int head_k = p.group.quotient(tile.head),
                k_batch = p.cu_seqlens_k.data != nullptr ? 0 : tile.batch_idx;
      const int first_key = (tile.n_max - 1) * kTileN, last_key = tile.n_min * kTileN;
      const int wanted_key = min(first_key, last_key + kFindAhead * kTileN);
      const int row0 = tile.seq.k_row0, key_begin = tile.key_begin, key_end = tile.key_end;
      const int* table = Spec::kPaged ? p.block_table + tile.batch_idx * p.table_batch_stride : nullptr;
      bool first = true;
#pragma unroll 1  // few registers
      for (int key = first_key; key >= last_key; key -= kTileN) {
        if (leads && key == wanted_key) mbarrier_arrive(&barriers.work_wanted);
        PagePart part{};
        if constexpr (Spec::kPaged) part = find_part(table, key, key_begin, key_end);
        mbarrier_wait(&barriers.k_empty[k_at.index], k_at.parity ^ 1);
        if constexpr (Spec::kPaged) {
          load_parts<Spec::kHeadDim>(all.k, &barriers.k_full[k_at.index], shared_k + k_at.index * kKeyBytes,
                                     part, head_k);
        } else {
          load<Spec::kHeadDim, kTileN>(all.k, &barriers.k_full[k_at.index], shared_k + k_at.index * kKeyBytes,
                                       row0 + key, head_k, k_batch, kEvictLast);
        }
        if (first) {
          mbarrier_wait(&barriers.q_empty[q_at.index], q_at.parity ^ 1);
          if (leads) {
            load<Spec::kHeadDim, Spec::kTileM>(
                all.q, &barriers.q_full[q_at.index], shared_q + q_at.index * kQueryBytes,
                tile.seq.q_row0 + tile.row0, tile.head, p.cu_seqlens_q.data != nullptr ? 0 : tile.batch_idx,
                kEvictFirst);
          }
          q_at.advance();
          if constexpr (Spec::kPaged) __syncwarp();
          if (leads) mbarrier_arrive(&barriers.work_empty[work_at.index]);
          work_at.advance();
          first = false;
        }
        mbarrier_wait(&barriers.v_empty[k_at.index], k_at.parity ^ 1);
        if constexpr (Spec::kPaged) {
          load_parts<Spec::kHeadDimV>(all.v, &barriers.v_full[k_at.index],
                                      shared_v + k_at.index * kValueBytes, part, head_k);
        } else {
          load<Spec::kHeadDimV, kTileN>(all.v, &barriers.v_full[k_at.index],
                                        shared_v + k_at.index * kValueBytes, row0 + key, head_k, k_batch,
                                        kEvictLast);
        }
        k_at.advance();  // V goes along
      }
    }
  }

  // ---- consumers

  ONEPASS_DEVICE static int lane() { return static_cast<int>(threadIdx.x) & 31; }
  /// One arrival for each warp.
  ONEPASS_DEVICE static void release(Uint64* empty) {
    if (lane() == 0) mbarrier_arrive(empty);
  }

  /// S = Q K^T of the K buffer that k_at stands at, issued.
  ONEPASS_DEVICE void score_product(int query_stage) {
    wgmma_fence();
    Spec::score_product(s, descriptor_low(shared_q + query_stage * kQueryBytes + consumer * 64 * 128, 16),
                        descriptor_low(shared_k + k_at.index * kKeyBytes, 16));
    wgmma_commit();
  }

  /// O = or += P V of the V buffer that v_at stands at, issued.
  ONEPASS_DEVICE void value_product(Uint32 (&used)[kTileN / 4]) {
    pin(o);
    pin(used);
    wgmma_fence();
    Spec::value_product(o, used, descriptor_low(shared_v + v_at.index * kValueBytes, kTileN * 128),
                        accumulate);
    accumulate = 1;
    wgmma_commit();
  }

  ONEPASS_DEVICE void pack(Uint32 (&made)[kTileN / 4]) {
#pragma unroll
    for (int i = 0; i < kTileN / 4; ++i) made[i] = ElementTraits<Element>::pack(s[2 * i], s[2 * i + 1]);
  }

  ONEPASS_DEVICE void correct_out(bool moved) {
    if (moved) {
#pragma unroll
      for (int i = 0; i < Spec::kHeadDimV / 2; ++i) o[i] *= softmax.correction[(i >> 1) & 1];
    }
  }

  /// Warpgroups issue their products one after the other.
  ONEPASS_DEVICE void take_turn() const { named_barrier_sync(kTurn + consumer, 256); }
  ONEPASS_DEVICE void give_turn() const {
    named_barrier_arrive(kTurn + (consumer + 1 == kConsumers ? 0 : consumer + 1), 256);
  }

  /// Of block n: some row does not see all of it.
  ONEPASS_DEVICE bool is_masked() const { return n >= full_max || (kMaskBegin && n < full_min); }

  /// Of the sequence, not before or past it.
  ONEPASS_DEVICE static bool is_row(const Work& tile, int row) {
    return row < tile.seq.seqlen_q && (!kBeginsBefore || row >= 0);
  }

  /// Scores of block n after scale, softcap, ALiBi and bias.
  ONEPASS_DEVICE void change_scores() {
    const Work& tile = barriers.work[work_place];
    const int first = n * kTileN + 2 * (lane() & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = tile.row0 + own_row + 8 * r;
      const BasicKeyBand<int> band{tile.band_lower, tile.band_upper};
      const BasicKeyRange<int> keys =
          visible_keys(band, is_row(tile, i) ? tile.seq.seqlen_k : 0, i, i + 1);
      const ScoreRow row =
          describe_row<true>(p, KeyRange{keys.begin, keys.end}, tile.seq, tile.batch_idx, tile.head, i);
      apply_score_terms<Element, kTileN / 4>(
          p, row, [&](int c) -> float& { return softmax.score(s, r, c); },
          [&](int c) { return first + softmax.column(c); });
    }
  }

  /// -inf for the keys of block n that the row does not see.
  ONEPASS_DEVICE void mask_scores() {
    const Work& tile = barriers.work[work_place];
    const int first = n * kTileN + 2 * (lane() & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = tile.row0 + own_row + 8 * r;
      softmax.mask(s, r, kMaskBegin ? row + tile.band_lower - first : 0,
                   min(tile.seq.seqlen_k, row + tile.band_upper + 1) - first);
    }
  }

  ONEPASS_DEVICE void wait_values() const { mbarrier_wait(&barriers.v_full[v_at.index], v_at.parity); }

  /// The scores of block n are there: their K is free, and so is Q after the last.
  ONEPASS_DEVICE void release_keys(int query_stage) {
    release(&barriers.k_empty[k_at.index]);
    k_at.advance();
    if (n == n_min) release(&barriers.q_empty[query_stage]);
  }
  ONEPASS_DEVICE void release_values() {
    release(&barriers.v_empty[v_at.index]);
    v_at.advance();
  }

  using Probabilities = Uint32[kTileN / 4];

  /// P V of block n and the scores of block n - 1, issued; on to n - 1, whose scores are there then.
  ONEPASS_DEVICE void start_step(int query_stage, Probabilities& used) {
    --n;
    mbarrier_wait(&barriers.k_full[k_at.index], k_at.parity);
    take_turn();
    score_product(query_stage);
    wait_values();
    value_product(used);
    if constexpr (kConsumers == 2) give_turn();
    wgmma_wait<1>();
    pin(s);
    if constexpr (kConsumers == 3) give_turn();
  }

  ONEPASS_DEVICE void finish_values() {
    wgmma_wait<0>();
    pin(o);
    release_values();
  }

  /// On to a block that every row sees whole. With one set of probabilities, made is used: it is written when
  /// the product is over.
  ONEPASS_DEVICE void step_whole(int query_stage, Probabilities& used, Probabilities& made) {
    start_step(query_stage, used);
    softmax.update_whole(s, p.softmax_scale_log2);
    if constexpr (!Spec::kTwoProbabilities) finish_values();
    pack(made);
    const bool failed = softmax.failed();
    if (failed) redo_block(query_stage, made);
    softmax.add_block();
    release_keys(query_stage);
    if constexpr (Spec::kTwoProbabilities) finish_values();
    correct_out(failed);
  }

  /// Down to block `last`, all of them whole.
  ONEPASS_DEVICE void walk_whole(int query_stage, int last) {
    if constexpr (Spec::kTwoProbabilities) {
      Probabilities others;
      bool odd = (n - last) % 2 != 0;
      if (odd) {
#pragma unroll
        for (int i = 0; i < kTileN / 4; ++i) others[i] = probabilities[i];
      }
      while (n > last) {
        if (!odd) step_whole(query_stage, probabilities, others);
        odd = false;
        step_whole(query_stage, others, probabilities);
      }
    } else {
      while (n > last) step_whole(query_stage, probabilities, probabilities);
    }
  }

  /// The block once more for the rows of the warp that failed: their maxima, then their probabilities,
  /// sixteen keys at a time from what is in shared memory still.
  ONEPASS_DEVICE void redo_block(int query_stage, Probabilities& made) {
    float larger[2] = {-infinity(), -infinity()}, sum[2] = {};
    bool failed[2];
#pragma unroll 1
    for (int i = 0; i < 2 * kTileN; i += 16) {
      const int key = i % kTileN;
      float d[2][4];
      scores_again(query_stage, key, d);
      if (i < kTileN) {
#pragma unroll
        for (int e = 0; e < 8; ++e) larger[e >> 1 & 1] = fmaxf(larger[e >> 1 & 1], d[e >> 2][e & 3]);
        if (i == kTileN - 16) softmax.find_failed(larger, failed, p.softmax_scale_log2);
        continue;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto exponent = softmax.exponent(r, p.softmax_scale_log2);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float(&pair)[4] = d[half];
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            pair[e] =
                exp2_approx(fmaf(pair[e] - exponent.difference, p.softmax_scale_log2, -exponent.subtrahend));
            sum[r] += pair[e];
          }
          const Uint32 packed = ElementTraits<Element>::pack(pair[2 * r], pair[2 * r + 1]);
#pragma unroll
          for (int e = 2 * half + r; e < kTileN / 4; e += 4) {  // registers have no index at run time
            if (failed[r] && e / 4 == key / 16) made[e] = packed;
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (failed[r]) softmax.block_sum[r] = sum[r];
    }
  }

  ONEPASS_DEVICE void scores_again(int query_stage, int key, float (&d)[2][4]) const {
    constexpr int kQueryBlock = Spec::kTileM * 128, kKeyBlock = kTileN * 128;
    warp_scores<Element, kDimSteps, kQueryBlock, kKeyBlock>(
        shared_q + query_stage * kQueryBytes + (own_row - lane() / 4) * 128,
        shared_k + k_at.index * kKeyBytes + key * 128, d);
  }

  ONEPASS_DEVICE bool passes_first(const Work& tile) const { return kPasses && tile.unseen >> consumer & 1; }

  /// Whether the warpgroup passes over the tile's first block of keys, and if so does, but for its turn and
  /// values. Only one: the copy of the next is then on its way, whatever the other warpgroups wait for.
  ONEPASS_DEVICE void wait_first_keys(const Work& tile) {
    if (passes_first(tile)) {
      mbarrier_wait(&barriers.k_full[k_at.index], k_at.parity);
      release(&barriers.k_empty[k_at.index]);
      k_at.advance();
    }
    mbarrier_wait(&barriers.k_full[k_at.index], k_at.parity);
  }

  ONEPASS_DEVICE void pass_values() {
    take_turn();
    give_turn();
    wait_values();
    release_values();
  }

  /// A tile without rows for this warpgroup: it takes its turns and lets every buffer go.
  ONEPASS_DEVICE void walk_idle(int query_stage) {
#pragma unroll 1
    while (n > n_min) {
      pass_values();
      --n;
      mbarrier_wait(&barriers.k_full[k_at.index], k_at.parity);
      release_keys(query_stage);
    }
    // So that those of the last tile need no registers until the next one.
#pragma unroll
    for (int i = 0; i < kTileN / 4; ++i) probabilities[i] = 0;
  }

  /// All key blocks of a tile whose first product is in flight, but for the last P V: with maxima the first
  /// one and those that need a mask, without them the ones between.
  ONEPASS_DEVICE void walk(int query_stage) {
    const Work& tile = barriers.work[work_place];
    const bool passes = passes_first(tile);
    n = tile.n_max - (passes ? 2 : 1);
    accumulate = 0;
    softmax.start();
    wgmma_wait<0>();
    pin(s);
    release_keys(query_stage);
    if constexpr (kIdles) {
      if (tile.row0 + 64 * consumer >= tile.seq.seqlen_q) {
        walk_idle(query_stage);
        return;
      }
    }
    for (;;) {
      if constexpr (Spec::kScoreTerms) change_scores();
      const bool masked = is_masked();
      if (masked) mask_scores();
      const bool moved = softmax.update(s, p.softmax_scale_log2);
      if (accumulate) {
        correct_out(moved);
      } else if (passes) {
        pass_values();
      }
      pack(probabilities);
      if (masked) clear_values();
      if constexpr (!Spec::kScoreTerms) {
        if (n <= full_max) walk_whole(query_stage, kMaskBegin ? max(n_min, full_min) : n_min);
        if constexpr (!kMasked) return;
      }
      if (n == n_min) return;
      start_step(query_stage, probabilities);
      release_keys(query_stage);
      finish_values();
    }
  }

  ONEPASS_DEVICE void consume() {
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32) & 3;
    own_row = 64 * consumer + 16 * warp + lane() / 4;
    if (consumer == kConsumers - 1) give_turn();
    if (more_work()) {
      take_work();
      mbarrier_wait(&barriers.q_full[0], 0);
      wait_first_keys(barriers.work[work_place]);
      take_turn();
      score_product(0);
      give_turn();
      for (;;) {
        walk(q_at.index);
        wait_values();
        const bool more = more_work();
        take_turn();
        value_product(probabilities);
        if (more) {
          q_at.advance();
          mbarrier_wait(&barriers.q_full[q_at.index], q_at.parity);
          wait_first_keys(barriers.work[work_at.index]);
        }
        score_product(q_at.index);  // of nothing after the last tile, so that the code is the same
        give_turn();
        wgmma_wait<1>();
        pin(o);
        release_values();
        store();
        leave_work();
        if (!more) break;
        take_work();
      }
      wgmma_wait<0>();
      pin(s);
    }
    if (consumer == 0) take_turn();  // the turn that nobody else takes
  }

  /// Rows of V in block n that no row of the tile sees become zeros: whatever they hold, 0 * x stays 0. Every
  /// warpgroup clears all of them, so that none waits for another.
  ONEPASS_DEVICE void clear_values() const {
    const Work& tile = barriers.work[work_place];
    const int begin = tile.key_begin - n * kTileN, end = tile.key_end - n * kTileN;
    // The copy gives zeros past the tensor's end, but a sequence's last page goes on.
    const int room = p.cu_seqlens_k.data != nullptr ? p.total_k - tile.seq.k_row0 : p.seqlen_k;
    if (begin <= 0 && (end >= kTileN || (!Spec::kPaged && tile.key_end >= room))) return;
    wait_values();
    constexpr int kPieces = kTileN * column_blocks(Spec::kHeadDimV) * 8;  // of 16 bytes
    for (int piece = static_cast<int>(threadIdx.x) & 127; piece < kPieces; piece += 128) {
      const int row = piece / 8 % kTileN;
      if (row >= begin && row < end) continue;
      *reinterpret_cast<uint4*>(values + v_at.index * kValueBytes + piece * 16) = uint4{0, 0, 0, 0};
    }
    fence_proxy_async();
    named_barrier_sync(kWarpgroup + consumer, 128);
  }

  /// O of the thread's two rows, normalised, and lse.
  ONEPASS_DEVICE void store() const {
    const Work& tile = barriers.work[work_place];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = tile.row0 + own_row + 8 * r;
      const bool inside = is_row(tile, row);
      const float sink = p.sinks != nullptr ? p.sinks[tile.head * p.sinks_stride] : -infinity();
      const RowResult result =
          finish_row(softmax.reference[r], quad_sum(softmax.sum[r]), p.softmax_scale_log2, sink);
      if (inside && p.lse != nullptr && (lane() & 3) == 0) {
        p.lse[tile.batch_idx * p.lse_batch_stride + tile.head * p.lse_head_stride +
              (tile.seq.q_row0 + row) * p.lse_row_stride] = result.lse;
      }
      unsigned short* out = static_cast<unsigned short*>(p.o.data) + tile.batch_idx * p.o.batch_stride +
                            (tile.seq.q_row0 + row) * p.o.row_stride + tile.head * p.o.head_stride;
      store_row<Spec::kHeadDimV>(out, inside, [&](int i) {
        return ElementTraits<Element>::pack(o[4 * i + 2 * r] * result.factor,
                                            o[4 * i + 2 * r + 1] * result.factor);
      });
    }
  }

  ONEPASS_DEVICE void run(char* /*shared*/) {
    const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
    if (threadIdx.x == 0) {
      if (shared_q % kSwizzleBytes != 0) __trap();  // the entry asks for this alignment
      init_barriers();
    }
    __syncthreads();
    if (warpgroup == 0) {
      give_registers<kProducerRegisters>();
      if (threadIdx.x < (Spec::kPaged ? 32 : 1)) produce();
      if constexpr (Spec::kRagged) {
        if (threadIdx.x / 32 == 1) schedule_ragged();
      } else {
        if (threadIdx.x == 32) schedule();
      }
    } else {
      take_registers<kConsumerRegisters>();
      consumer = warpgroup - 1;
      consume();
    }
  }
};

}  // namespace onepass::cuda
