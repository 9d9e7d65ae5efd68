// sm90/decode.cuh - attention of few query rows with many keys on Hopper
//
// Problem    O = softmax(scale * Q K^T + terms, masked) V and lse; bf16 or f16 in, f32 sums; dense, packed or
//            paged keys, which may be stored in 8 bits with factors; head_dim a multiple of 16 up to 256;
//            every mask; softcap, ALiBi, sinks. What costs is the one read of K and V
// Tile       kTileM packed query rows (row r is query r / group, head r % group of the key head) x kTileN
//            keys. A thread block has one tile of rows and walks every num_splits-th block of their keys; with
//            kStays it takes such items one after the other, by number or, where lengths differ (kRagged), a
//            share of the keys of all tiles of rows (decode_shares.h)
// Product    transposed, so that few rows waste little: S^T = K Q^T has keys along M of the mma and query
//            rows along N, in eights; O^T = V^T P^T. P^T goes from accumulators to operand B by movmatrix
// 8 bits     decode_operands.cuh: from ldmatrix to the product a word of four elements takes two to five
//            instructions more. Q becomes f16, bf16 rows with the power of two that brings their largest
//            element to 2^14; that and K's factor multiply the scores, V's factor the end of a row. Factors
//            of pages (kPageFactors) come with the copies of a slot, by cp.async; those of K multiply columns
//            of S, those of V columns of P, over a power of two that O counts
// Roles      warp kConsumers copies K and V (tensor memory accelerator), its lanes a box each; with kGather it
//            and the next one do, row by row. Each other warp has its own keys of every block, all rows, and
//            maxima, sums and O, which are joined at the end
// Pipeline   a ring of kStages slots: K of a block, V of it, K of the next ... Each has a full and an empty
//            barrier. kStages is what is in flight; with kStays, slots_in_flight of them are, the others hold
//            what has landed, and the next item's keys come while this one's rows are joined
// Pages      a box is min(page, slot) keys, or less so that it divides both. The producer looks up 32 boxes
//            at a time, one a lane, long before they are asked for, and the first ones before the length is
//            known. A box that nobody wants is asked for outside the tensor, and comes as zeros. Pages of
//            other than eights have no box: decode_gather.cuh says how their rows come
// Splits     interleaved, so that parts are alike whatever the length; shares are cut where they are full; with
//            kParts they have a fixed number of keys, and a tile of rows as many as its own keys need. Each
//            block stores the normalised rows of its part in the workspace; the one of a tile that arrives
//            last merges all of them, in order: the same bits, whichever is last. With kCluster the eight blocks of a tile are a cluster, and each
//            merges its share of the columns from the shared memory of all
// Ordering   (merge) a block's stores of its part, barrier of its consumers, count up [thread 0] -> the last
//            count up, barrier, loads past L1 [all consumers]. A count releases, and the last one acquires,
//            also what other threads did before the barrier: causality order is cumulative
// Shared     decode_layout.h; tiles in blocks of 64 columns with the 128-byte swizzle
// Registers  per consumer thread and eight rows: O head_dim_v / 4, Q head_dim / 8, S kTileN / 16
// Numerics   common/softmax.cuh; keys that no row sees are zeros in shared memory (V) and -inf in S
// Declines   bias, other head_dims, many rows (heuristics_decode.cpp)
// Sources    Dao 2023 (arXiv:2307.08691), algorithm 1; Dao, Haziza, Massa, Sizov 2023, "Flash-Decoding for
//            long-context inference", for the splits; Osama et al. 2023, "Stream-K" (arXiv:2301.03598), for
//            the shares
#pragma once

#include "common/key_parts.h"
#include "common/launch_count.cuh"
#include "common/score.cuh"
#include "common/sequence.cuh"
#include "common/softmax.cuh"
#include "common/split_rows.cuh"
#include "common/tile_range.h"
#include "params.h"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/fragment_maps.h"
#include "ptx/global.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "ptx/movmatrix.cuh"
#include "ptx/special.cuh"
#include "ptx/tma.cuh"
#include "sm90/decode_gather.cuh"
#include "sm90/decode_layout.h"
#include "sm90/decode_operands.cuh"
#include "sm90/decode_work.cuh"
#include "sm90/ring.cuh"
#include "sm90/warp_scores.cuh"

namespace onepass::cuda {

template <class Spec>
struct DecodeSm90 {
  using Element = typename Spec::Element;
  using Stored = StoredTile<typename Spec::Stored>;
  using Operand = typename Stored::Operand;
  using Gather = DecodeGather<Spec>;
  static constexpr int kColumnsK = decode_columns(Spec::kHeadDim, sizeof(typename Spec::Stored));
  static constexpr int kColumnsV = decode_columns(Spec::kHeadDimV, sizeof(typename Spec::Stored));
  static constexpr int kProducers = decode_producers(Spec::kGather);  // warps
  static constexpr int kConsumers = Spec::kWarps - kProducers;
  static constexpr int kThreads = 32 * Spec::kWarps;
  static constexpr int kTileM = Spec::kTileM, kTileN = Spec::kTileN, kStages = Spec::kStages;
  static constexpr bool kShares = Spec::kStays && Spec::kRagged;      // of the keys, for blocks that stay
  static constexpr int kPartTiles = kPartKeys / kTileN;               // of keys
  static constexpr int kRowTiles = kTileM / 8;                        // n8 tiles
  static constexpr int kWarpKeys = kTileN / kConsumers;               // of a block
  static constexpr int kKeyTiles = kWarpKeys / 16;                    // m16 tiles of S^T
  static constexpr int kDimSteps = Spec::kHeadDim / 16;               // k16 steps of K Q^T
  static constexpr int kOutTiles = Spec::kHeadDimV / 16;              // m16 tiles of O^T
  static constexpr int kChains = kRowTiles * kKeyTiles == 1 ? 2 : 1;  // of products that wait for each other
  static constexpr int kSlotBytes = decode_slot_bytes(kTileN, kColumnsK, kColumnsV);
  static constexpr int kJointBytes =
      static_cast<int>(decode_joint_bytes(kConsumers, kTileM, Spec::kHeadDimV));
  static constexpr int kSlotFactors = decode_slot_factors(Spec::kPageFactors, Spec::kGather, kTileN);
  static constexpr int kSharedBytes = static_cast<int>(
      decode_shared_bytes(kTileN, kColumnsK, kColumnsV, kStages, Spec::kStays ? kJointBytes : 0, kSlotFactors));
  static constexpr int kPitch = decode_joint_pitch(Spec::kHeadDimV);  // floats
  static constexpr int kPieces = Spec::kHeadDimV / 4;                 // of a row, four columns each

  static_assert(kTileM % 8 == 0, "rows are whole n8 tiles");
  static_assert(kTileN % (16 * kConsumers) == 0, "a warp has whole m16 tiles of keys");
  static_assert(Spec::kHeadDim % 16 == 0 && Spec::kHeadDimV % 16 == 0, "products take 16 columns a step");
  template <int kColumns>
  static constexpr int kCopies = kTileN / kFewestBoxKeys*(decode_copies_rows(kColumns) ? 1 : column_blocks(kColumns));
  static_assert(kCopies<kColumnsK> <= 32 && kCopies<kColumnsV> <= 32,
                "a lane issues one copy of a tile");
  static_assert(kJointBytes <= kStages * kSlotBytes, "the ring has room for every O");
  static_assert(kStages >= 2, "a block's K and V");
  static_assert(!Spec::kGather || Spec::kPaged, "keys are gathered from pages");
  static_assert(!Spec::kPageFactors || (Spec::kPaged && Stored::kEightBits), "factors belong to pages of 8 bits");
  static_assert(!Spec::kCluster || (Spec::kSplit && !Spec::kStays), "the splits of a tile are a cluster");
  static_assert(!kShares || !Spec::kSplit, "keys are split or shared out");
  static_assert(!Spec::kParts || (Spec::kSplit && !Spec::kCluster && kPartTiles * kTileN == kPartKeys),
                "parts are whole tiles, merged through the workspace");
  static_assert(!Spec::kCluster || kJointBytes + 4 * kTileM * (Spec::kHeadDimV + 1) <= kStages * kSlotBytes,
                "and for the block's part");

  /// Behind the ring.
  struct Control {
    Uint64 full[kStages], empty[kStages];
    int is_last;  // the block is the last of its tile to arrive
  };
  static_assert(sizeof(Control) == decode_control_bytes(kStages), "decode_layout.h counts it");

  const Sm90DecodeParams& all;
  const ForwardParams& p;
  Uint32 ring;
  Control& control;
  // Where warps join their rows, in the ring when it has been read or behind it: O [warp][row][kPitch], then
  // maxima and sums [warp][row].
  float *joint_out, *joint_max, *joint_sum;
  float* slot_factors;         // before control: [slot][kSlotFactors]
  float *part_out, *part_lse;  // behind joint rows: what the cluster merges, [row][head_dim_v] and [row]
  int lane, warp;

  // This block's work.
  int batch_idx, head_k, m_block;
  int part_idx, num_parts;  // of the keys of the tile's rows: which this one is
  // Of shares: the tile of keys, from the first that the sequence sees, at which the part begins and ends; and
  // the share that has the tile's first part.
  int part_begin, part_end, first_share;
  int row0, num_rows;  // packed rows
  Sequence seq;
  BasicKeyBand<int> band;
  int key_begin, key_end;        // keys that some row sees
  int n_begin, n_end;            // blocks of keys that this one walks
  int n_full_begin, n_full_end;  // blocks that every row sees whole

  RingPosition<kStages> at;

  // Of the producer: what look_up gave ahead of time, and for which sequence and block of keys.
  int first_page, page_batch = -1, page_n;
  typename Gather::Pages first_pages;

  // Of the producer that stays.
  RingPosition<kStages> landed;  // of the load that is to land before the next one
  int num_loads = 0;

  // Of a consumer.
  Uint32 key_rows[kKeyTiles], value_rows[kKeyTiles];  // where in a tile the rows lie that it reads
  Uint32 queries[kRowTiles][kDimSteps][2];
  float score_factor[kRowTiles][2];  // of the rows of S that a thread owns
  float value_factor;
  int value_exponent;  // of factors of pages: the power of two that O counts, biased
  float s[kRowTiles][kKeyTiles][4];
  float o[kRowTiles][kOutTiles][4];
  RunningSoftmax<kRowTiles, RowsAlongN> softmax;

  ONEPASS_DEVICE DecodeSm90(const Sm90DecodeParams& params, char* shared)
      : all(params),
        p(params.forward),
        ring(shared_address(shared)),
        control(*reinterpret_cast<Control*>(shared + kSharedBytes - sizeof(Control))),
        slot_factors(reinterpret_cast<float*>(shared + kSharedBytes - sizeof(Control)) - kStages * kSlotFactors),
        joint_out(reinterpret_cast<float*>(shared + (Spec::kStays ? kStages * kSlotBytes : 0))),
        joint_max(joint_out + kConsumers * kTileM * kPitch),
        joint_sum(joint_max + kConsumers * kTileM),
        part_out(joint_sum + kConsumers * kTileM),
        part_lse(part_out + kTileM * Spec::kHeadDimV),
        lane(static_cast<int>(threadIdx.x) & 31),
        warp(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0)) {}

  ONEPASS_DEVICE bool is_producer() const { return kProducers == 1 ? warp == kConsumers : warp >= kConsumers; }

  ONEPASS_DEVICE void init_barriers() {
    for (int i = 0; i < kStages; ++i) {
      // A lane each that gathers or copies factors, and one that expects the boxes' bytes.
      mbarrier_init(&control.full[i], Spec::kGather ? 32 * kProducers : Spec::kPageFactors ? 32 + 1 : 1);
      mbarrier_init(&control.empty[i], kConsumers);
    }
    fence_mbarrier_init();
  }

  // ---- work

  /// Reads an item's number as (batch, split, key head, m_block), the last fastest: who shares keys is near.
  /// In a cluster splits are fastest.
  ONEPASS_DEVICE void take_item(int item) {
    part_idx = 0;
    num_parts = 1;
    if constexpr (Spec::kCluster) {
      num_parts = kClusterBlocks;
      part_idx = item % kClusterBlocks;
      item /= kClusterBlocks;
    }
    int outer = take_tile(item);
    if constexpr (Spec::kSplit && !Spec::kCluster) {
      num_parts = p.num_splits.divisor;
      const int split = outer;
      outer = p.num_splits.quotient(split);
      part_idx = p.num_splits.remainder(split, outer);
    }
    batch_idx = outer;
    if constexpr (Spec::kPaged) {
      if (is_producer()) look_ahead(batch_idx, Spec::kParts ? part_idx * kPartTiles : part_idx);  // early
    }
    seq = sequence_at(p, batch_idx);
  }

  /// Of (outer, key head, m_block), the outermost comes back.
  ONEPASS_DEVICE int take_tile(int item) {
    const int head = p.m_blocks.quotient(item);
    m_block = p.m_blocks.remainder(item, head);
    const int outer = p.tile_heads.quotient(head);
    head_k = p.tile_heads.remainder(head, outer);
    return outer;
  }

  /// Whether the item has rows and, of fixed parts, is one of theirs; what its keys are then.
  ONEPASS_DEVICE bool find_rows_and_keys() {
    row0 = m_block * kTileM;
    num_rows = min(kTileM, seq.seqlen_q * p.group.divisor - row0);
    if (num_rows > 0) find_keys();
    if constexpr (Spec::kParts) return num_rows > 0 && find_part();
    return num_rows > 0;
  }

  /// Fixed parts (key_parts.h): the tile's rows have those that hold keys which they see, or one without keys.
  /// Whether this is one of them; what it has of the blocks then.
  ONEPASS_DEVICE bool find_part() {
    const int first = n_begin < n_end ? n_begin / kPartTiles : 0;
    num_parts = n_begin < n_end ? (n_end - 1) / kPartTiles + 1 - first : 1;
    const KeyRange part = part_blocks(n_begin, n_end, part_idx, kTileN);
    n_begin = static_cast<int>(part.begin);
    n_end = static_cast<int>(part.end);
    part_idx -= first;
    return part_idx >= 0 && part_idx < num_parts;
  }

  /// Which of the blocks that have the same share this one is.
  ONEPASS_DEVICE int own_member() const {
    const int block = static_cast<int>(blockIdx.x);
    return all.team.remainder(block, all.team.quotient(block));
  }

  /// f() for the block's items that have rows.
  template <class F>
  ONEPASS_DEVICE void for_each_item(F f) {
    if constexpr (kShares) {
      for_each_shared_item(f);
    } else if constexpr (Spec::kStays) {
      for (int item = static_cast<int>(blockIdx.x); item < all.num_items;
           item += static_cast<int>(gridDim.x)) {
        take_item(item);
        if (find_rows_and_keys()) f();
      }
    } else {
      take_item(static_cast<int>(blockIdx.x));
      if (find_rows_and_keys()) f();
    }
  }

  /// all.team blocks beside each other have the same share of keys, each of a tile of rows of its own; a
  /// sequence has all.team * all.rounds such tiles, and as many items in the row of all as rounds.
  template <class F>
  ONEPASS_DEVICE void for_each_shared_item(F f) {
    const int share = all.team.quotient(static_cast<int>(blockIdx.x)), member = own_member();
    const auto units_at = [this](int batch) {
      const Sequence s = sequence_at(p, batch, false);
      return s.seqlen_q > 0 ? all.rounds * item_units(sequence_tiles<kTileN>(p, s).count()) : 0;
    };
    const Shares shares = share_out(total_units(p.batch, units_at), all.num_shares);
    if (share >= shares.count) return;
    const int begin = shares.begin(share), end = shares.begin(share + 1);
    SequenceStart at_sequence = find_sequence(p.batch, units_at, begin);
    for (; at_sequence.batch < p.batch && at_sequence.unit < end; ++at_sequence.batch) {
      batch_idx = at_sequence.batch;
      seq = sequence_at(p, batch_idx);
      if (seq.seqlen_q == 0) continue;
      const SequenceTiles tiles = sequence_tiles<kTileN>(p, seq);
      for (int round = 0; round < all.rounds; ++round, at_sequence.unit += item_units(tiles.count())) {
        const int unit = at_sequence.unit;
        const ItemPart part = part_of_item(shares, share, unit, tiles.count());
        const bool mine = share >= part.first_share && share <= part.last_share;
        if (!mine) continue;
        take_tile(round * all.team.divisor + member);
        first_share = part.first_share;
        part_idx = share - part.first_share;
        num_parts = part.last_share - part.first_share + 1;
        part_begin = tiles.begin + part.begin;
        part_end = tiles.begin + part.end;
        if (find_rows_and_keys()) f();
      }
    }
  }

  ONEPASS_DEVICE void find_keys() {
    band = narrow_key_band(p, seq);
    const int query_begin = query_of(0), query_end = query_of(num_rows - 1) + 1;
    const BasicKeyRange<int> keys = visible_keys(band, seq.seqlen_k, query_begin, query_end);
    const BasicTileRange<int> range = tile_range(band, seq.seqlen_k, query_begin, query_end, kTileN);
    key_begin = keys.begin;
    key_end = keys.end;
    n_begin = range.n_block_min + (Spec::kParts ? 0 : part_idx);
    n_end = range.n_block_max;
    if constexpr (kShares) {
      n_begin = max(range.n_block_min, part_begin);
      n_end = min(range.n_block_max, part_end);
    }
    n_full_begin = range.n_block_full_min;
    n_full_end = range.n_block_full_max;
  }

  /// From a block of keys to the part's next one.
  ONEPASS_DEVICE int n_step() const { return kShares || Spec::kParts ? 1 : num_parts; }

  /// Query and head of a row, which counts from the tile's first.
  ONEPASS_DEVICE int query_of(int row) const { return p.group.quotient(row0 + row); }
  ONEPASS_DEVICE int head_of(int row) const {
    return head_k * p.group.divisor + p.group.remainder(row0 + row, query_of(row));
  }
  ONEPASS_DEVICE Index64 row_offset(const TensorParams& t, int row) const {
    return batch_idx * t.batch_stride + (seq.q_row0 + query_of(row)) * t.row_stride +
           head_of(row) * t.head_stride;
  }

  // ---- producer

  /// Where a copy of a box begins: its row in the sequence, packed buffer or page, and the sequence or page.
  struct BoxPlace {
    int row, outer;
  };

  /// Of this lane's box in block n of the keys, which lies in `page`.
  ONEPASS_DEVICE BoxPlace find_box(int n, int page) const {
    const int key = n * kTileN + lane * all.box_keys;
    if constexpr (!Spec::kPaged) return {seq.k_row0 + key, p.cu_seqlens_k.data != nullptr ? 0 : batch_idx};
    const BoxPlace outside = {p.page_size.divisor, 0};
    if (lane >= all.boxes || key >= key_end || key + all.box_keys <= key_begin) return outside;
    if (page < 0 || page >= p.num_pages) {
      *p.error_flag = static_cast<int>(KernelError::PageOutOfPool);
      return outside;
    }
    return {p.page_size.remainder(key, p.page_size.quotient(key)), page};
  }

  /// Blocks of keys whose boxes are as many as a warp has lanes.
  ONEPASS_DEVICE int blocks_at_once() const { return 32 / all.boxes; }

  /// A sequence's table entry for a box of the blocks n, n + n_step(), ..: box lane % boxes of block
  /// lane / boxes. Past the table there is none.
  ONEPASS_DEVICE int look_up(int batch, int n) const {
    const int key = (n + lane / all.boxes * n_step()) * kTileN + lane % all.boxes * all.box_keys;
    const int column = p.page_size.quotient(key);
    if (column >= p.max_pages) return -1;
    return p.block_table[batch * p.table_batch_stride + column * p.table_page_stride];
  }

  ONEPASS_DEVICE void look_ahead(int batch, int n) {
    if (batch >= p.batch) return;
    if constexpr (Spec::kGather) {
      first_pages = gatherer().look_up(batch, n);
    } else {
      first_page = look_up(batch, n);
    }
    page_batch = batch;
    page_n = n;
  }

  // A tile of kColumns of 16 bits: block of columns b of key k is at row_in_tile(k) + b * block_bytes().
  ONEPASS_DEVICE int box_keys() const { return Spec::kPaged ? all.box_keys : kTileN; }  // a power of two
  template <int kColumns>
  ONEPASS_DEVICE int block_bytes() const {
    return 128 * (decode_copies_rows(kColumns) ? box_keys() : kTileN);
  }
  template <int kColumns>
  ONEPASS_DEVICE int row_in_tile(int key) const {
    if constexpr (!decode_copies_rows(kColumns)) return key * 128;
    const int within = key & (box_keys() - 1);
    return (key - within) * column_blocks(kColumns) * 128 + within * 128;
  }

  /// Until the next slot may be filled.
  ONEPASS_DEVICE void wait_empty() {
    mbarrier_wait(&control.empty[at.index], at.parity ^ 1);
    if constexpr (Spec::kStays) {
      if (++num_loads > all.slots_in_flight) {
        mbarrier_wait(&control.full[landed.index], landed.parity);
        landed.advance();
      }
    }
  }

  /// The factor of a page, to place `index` of the next slot's; 0 for keys that nobody wants.
  ONEPASS_DEVICE void copy_factor(const ScaleParams& scale, int index, int page, bool inside) const {
    if (scale.data == nullptr) return;
    cp_async<4>(shared_address(slot_factors + at.index * kSlotFactors + index),
                scale.data + batch_idx * scale.batch_stride + page * scale.page_stride + head_k * scale.head_stride,
                inside ? 4 : 0);
  }

  /// A tile of K or V into the next slot, a copy by a lane each.
  template <int kColumns>
  ONEPASS_DEVICE void load(const TensorMap& map, const ScaleParams& scale, const BoxPlace& known, Uint64 l2_hint) {
    constexpr int kColumnBlocks = column_blocks(kColumns);
    Uint64* const full = &control.full[at.index];
    wait_empty();
    if (lane == 0) mbarrier_arrive_expect(full, sm90_tile_bytes(kTileN, kColumns));
    if constexpr (Spec::kPageFactors) {
      const bool inside = known.row < p.page_size.divisor;
      if (lane < all.boxes) copy_factor(scale, lane, known.outer, inside);
      cp_async_mbarrier_arrive(full);
    }
    __syncwarp();
    const Uint32 slot = ring + at.index * kSlotBytes;
    if constexpr (decode_copies_rows(kColumns)) {
      if (lane < all.boxes) {
        tma_load_rows(map, full, slot + row_in_tile<kColumns>(lane * all.box_keys), known.row, head_k,
                      known.outer, l2_hint);
      }
    } else {
      const int box = lane / kColumnBlocks, block = lane % kColumnBlocks;
      const BoxPlace place = {__shfl_sync(0xffffffffu, known.row, box),
                              __shfl_sync(0xffffffffu, known.outer, box)};
      if (box < all.boxes) {
        tma_load(map, full, slot + block * block_bytes<kColumns>() + row_in_tile<kColumns>(box * all.box_keys),
                 block * kBlockColumns, place.row, head_k, place.outer, l2_hint);
      }
    }
    __syncwarp();  // no lane runs ahead to the next slot
    at.advance();
  }

  /// The keys and values of an item.
  ONEPASS_DEVICE void produce() {
    const Uint64 l2_hint = p.m_blocks.divisor == 1 ? kEvictFirst : kEvictNormal;  // who else reads these keys
    int pages = 0, ahead = 0, i = 0;  // of the blocks at hand, and of those after them
    if constexpr (Spec::kPaged) {
      pages = page_batch == batch_idx && page_n == n_begin ? first_page : look_up(batch_idx, n_begin);
      ahead = look_up(batch_idx, n_begin + blocks_at_once() * n_step());
      if constexpr (kShares) look_ahead(batch_idx + 1, 0);
    }
    for (int n = n_begin; n < n_end; n += n_step()) {
      int page = 0;
      if constexpr (Spec::kPaged) {
        if (i == blocks_at_once()) {
          i = 0;
          pages = ahead;
          ahead = look_up(batch_idx, n + blocks_at_once() * n_step());
        }
        page = __shfl_sync(0xffffffffu, pages, i++ * all.boxes + lane % all.boxes);
      }
      const BoxPlace place = find_box(n, page);
      load<kColumnsK>(all.k, all.k_scale, place, l2_hint);
      load<kColumnsV>(all.v, all.v_scale, place, l2_hint);
    }
  }

  ONEPASS_DEVICE Gather gatherer() const { return {p, lane, warp - kConsumers}; }

  /// This warp's rows of a tile of K or V into the next slot.
  template <int kColumns>
  ONEPASS_DEVICE void gather_tile(const char* head, const ScaleParams& scale,
                                  const Index64 (&rows)[Gather::kLookUps], const typename Gather::Rows& found) {
    wait_empty();
    if constexpr (Spec::kPageFactors) {
#pragma unroll
      for (int i = 0; i < Gather::kLookUps; ++i) {
        copy_factor(scale, gatherer().key_at(0, i), found.page[i], (found.inside[i] >> lane & 1) != 0);
      }
    }
    gatherer().template copy_rows<kColumns>(ring + at.index * kSlotBytes, head, rows, found.inside);
    __syncwarp();  // no lane runs ahead to the next slot
    cp_async_mbarrier_arrive(&control.full[at.index]);
    at.advance();
  }

  /// The keys and values of an item, pages looked up a tile ahead.
  ONEPASS_DEVICE void gather() {
    const Gather gatherer = this->gatherer();
    const char *const k = Gather::head_of(p.k, head_k), *const v = Gather::head_of(p.v, head_k);
    typename Gather::Pages pages = first_pages;
    if (page_batch != batch_idx || page_n != n_begin) pages = gatherer.look_up(batch_idx, n_begin);
    if constexpr (kShares) look_ahead(batch_idx + 1, 0);
    for (int n = n_begin; n < n_end; n += n_step()) {
      const typename Gather::Rows rows = gatherer.find_rows(pages, n, key_begin, key_end);
      pages = gatherer.look_up(batch_idx, n + n_step());
      gather_tile<kColumnsK>(k, all.k_scale, rows.k, rows);
      gather_tile<kColumnsV>(v, all.v_scale, rows.v, rows);
    }
  }

  // ---- consumers

  /// Q^T as operand B, from global memory; rows past the end are zeros.
  ONEPASS_DEVICE void load_queries() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      const int row = 8 * t + operand_b_place(lane, 0).column;
      const bool inside = row < num_rows;
      const unsigned short* base =
          static_cast<const unsigned short*>(p.q.data) + row_offset(p.q, inside ? row : 0);
#pragma unroll
      for (int step = 0; step < kDimSteps; ++step) {
#pragma unroll
        for (int reg = 0; reg < 2; ++reg) {
          const int column = 16 * step + Stored::query_column(lane, reg);
          queries[t][step][reg] = inside ? *reinterpret_cast<const Uint32*>(base + column) : 0u;
        }
      }
    }
    if constexpr (Stored::kEightBits) find_factors();
  }

  ONEPASS_DEVICE float scale_at(const ScaleParams& scale) const {
    if (scale.data == nullptr) return 1.0f;
    return scale.data[batch_idx * scale.batch_stride + head_k * scale.head_stride];
  }

  /// Makes the queries f16, and finds what scores and rows of O are to be multiplied by.
  ONEPASS_DEVICE void find_factors() {
    const float k_scale = Spec::kPageFactors ? 1.0f : scale_at(all.k_scale);
    value_factor = Spec::kPageFactors ? 1.0f : scale_at(all.v_scale);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      float factor = k_scale;
      factor *= make_f16(Element{}, queries[t]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        score_factor[t][r] = __shfl_sync(0xffffffffu, factor, 4 * accumulator_place(lane, r).column);
      }
    }
  }

  ONEPASS_DEVICE void find_rows() {
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
      const int first = warp * kWarpKeys + 16 * k;
      key_rows[k] = row_in_tile<kColumnsK>(first + ldmatrix_a_place(lane).row);
      value_rows[k] = row_in_tile<kColumnsV>(first + ldmatrix_a_trans_place(lane).row);
    }
  }

  /// Waits for the slot that is next to be read; its address.
  ONEPASS_DEVICE Uint32 wait_slot() const {
    mbarrier_wait(&control.full[at.index], at.parity);
    return ring + at.index * kSlotBytes;
  }
  ONEPASS_DEVICE void leave_slot() {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&control.empty[at.index]);
    at.advance();
  }

  /// S^T = K Q^T                                                   (kWarpKeys, kTileM) in registers
  ONEPASS_DEVICE void score_product(Uint32 keys) {
    float sum[kChains][kRowTiles][kKeyTiles][4] = {};
    const TilePlace place = ldmatrix_a_place(lane);
#pragma unroll
    for (int first = 0; first < kDimSteps; first += Stored::kOperands) {
      const int load = first / Stored::kOperands;
#pragma unroll
      for (int k = 0; k < kKeyTiles; ++k) {
        Uint32 loaded[4];
        ldmatrix_x4(loaded, swizzled(keys + key_rows[k] + load / 4 * block_bytes<kColumnsK>(), place.row,
                                     2 * load + place.column / 8));
#pragma unroll
        for (int step = first; step < first + Stored::kOperands && step < kDimSteps; ++step) {
          Uint32 a[4];
          Stored::keys(loaded, step - first, a);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) {
            mma_m16n8k16<Operand>(sum[step % kChains][t][k], a, queries[t][step][0], queries[t][step][1]);
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[t][k][e] = sum[0][t][k][e];
          if constexpr (kChains == 2) s[t][k][e] += sum[1][t][k][e];
          if constexpr (Stored::kEightBits) s[t][k][e] *= score_factor[t][RowsAlongN::row(e)];
        }
      }
    }
    if constexpr (Spec::kPageFactors) multiply_scores();
  }

  /// What the slot at hand's keys are multiplied by, of this thread's keys of S^T: of the tiles of 16 keys, two.
  ONEPASS_DEVICE void load_factors(const ScaleParams& scale, float (&factors)[kKeyTiles][2]) const {
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = warp * kWarpKeys + 16 * k + accumulator_place(lane, 2 * half).row;
        const int index = Spec::kGather ? key : key * all.boxes / kTileN;
        factors[k][half] = scale.data == nullptr ? 1.0f : slot_factors[at.index * kSlotFactors + index];
      }
    }
  }

  /// By the factors of the keys' pages.
  ONEPASS_DEVICE void multiply_scores() {
    float factors[kKeyTiles][2];
    load_factors(all.k_scale, factors);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[t][k][e] *= factors[k][e / 2];
      }
    }
  }

  /// P by the factors of the values' pages, over the power of two that the largest so far of the warp's is at
  /// least: f16 holds 1 to 2^-24, factors may be far from 1. O follows where that grows.
  ONEPASS_DEVICE void multiply_probabilities() {
    float factors[kKeyTiles][2], largest = 0.0f;
    load_factors(all.v_scale, factors);
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
      largest = fmaxf(largest, fmaxf(fabsf(factors[k][0]), fabsf(factors[k][1])));
    }
    const int exponent = min(__float_as_int(RowsAlongN::max(largest)) >> 23, 253);
    if (exponent > value_exponent) {
      const float rescale = __int_as_float(max(127 + value_exponent - exponent, 0) << 23);
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
          for (int e = 0; e < 4; ++e) o[t][tile][e] *= rescale;
        }
      }
      value_exponent = exponent;
    }
    const float inverse = __int_as_float((254 - value_exponent) << 23);
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor = factors[k][half] * inverse;
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          s[t][k][2 * half] *= factor;
          s[t][k][2 * half + 1] *= factor;
        }
      }
    }
  }

  /// Score terms, and -inf where a row does not see the key: a selection, so that NaN outside the mask
  /// vanishes.
  ONEPASS_DEVICE void change_scores(int first_key, bool masked) {
    if (!Spec::kScoreTerms && !masked) return;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = min(8 * t + accumulator_place(lane, r).column, num_rows - 1), query = query_of(row);
        const BasicKeyRange<int> keys = visible_keys(band, seq.seqlen_k, query, query + 1);
        const auto score = [&](int i) -> float& { return s[t][i / 2][RowsAlongN::element(r, i % 2)]; };
        const auto key = [&](int i) {
          return first_key + 16 * (i / 2) + accumulator_place(lane, RowsAlongN::element(r, i % 2)).row;
        };
        if constexpr (Spec::kScoreTerms) {
          const ScoreRow described =
              describe_row<true>(p, KeyRange{keys.begin, keys.end}, seq, batch_idx, head_of(row), query);
          apply_score_terms<Element, 2 * kKeyTiles>(p, described, score, key);
        }
#pragma unroll
        for (int i = 0; i < 2 * kKeyTiles; ++i) {
          if (masked && (key(i) < keys.begin || key(i) >= keys.end)) score(i) = -infinity();
        }
      }
    }
  }

  /// Rows of V that no row sees become zeros: whatever they hold, 0 * x stays 0. The warp's own keys. Gathered
  /// ones are zeros already.
  ONEPASS_DEVICE void clear_values(Uint32 values, int first_key) const {
    if constexpr (Spec::kGather) return;
    const int begin = key_begin - first_key, end = key_end - first_key;
    if (begin <= 0 && end >= kWarpKeys) return;
    constexpr int kChunks = column_blocks(kColumnsV) * 8;  // of a row, 16 bytes each
    for (int i = lane; i < kWarpKeys * kChunks; i += 32) {
      const int row = i / kChunks;
      if (row >= begin && row < end) continue;
      const Uint32 block = values + row_in_tile<kColumnsV>(warp * kWarpKeys + row) +
                           i % kChunks / 8 * block_bytes<kColumnsV>();
      store_shared(swizzled(block, row, i % kChunks), uint4{0, 0, 0, 0});
    }
    fence_proxy_async();  // before a copy comes here again
    __syncwarp();
  }

  /// O^T += V^T P^T                                                (head_dim_v, kTileM) in registers
  ONEPASS_DEVICE void value_product(Uint32 values) {
    const TilePlace place = ldmatrix_a_trans_place(lane);
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
      Uint32 b[kRowTiles][2];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          b[t][half] =
              movmatrix_trans(ElementTraits<Operand>::pack(s[t][k][2 * half], s[t][k][2 * half + 1]));
        }
      }
#pragma unroll
      for (int first = 0; first < kOutTiles; first += Stored::kOperands) {
        const int load = first / Stored::kOperands;
        Uint32 loaded[4];
        ldmatrix_x4_trans(loaded, swizzled(values + value_rows[k] + load / 4 * block_bytes<kColumnsV>(),
                                           place.row, 2 * load + place.column / 8));
#pragma unroll
        for (int tile = first; tile < first + Stored::kOperands && tile < kOutTiles; ++tile) {
          Uint32 a[4];
          Stored::values(loaded, tile - first, a);
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) mma_m16n8k16<Operand>(o[t][tile], a, b[t][0], b[t][1]);
        }
      }
    }
  }

  ONEPASS_DEVICE void walk_keys() {
    softmax.reset();
    value_exponent = 1;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[t][tile][e] = 0.0f;
      }
    }
    for (int n = n_begin; n < n_end; n += n_step()) {
      const int first_key = n * kTileN + warp * kWarpKeys;
      const bool seen = first_key < key_end && first_key + kWarpKeys > key_begin;
      const Uint32 keys = wait_slot();
      if (seen) score_product(keys);
      leave_slot();
      if (seen) {
        change_scores(first_key, n < n_full_begin || n >= n_full_end);
        softmax.update(s, o, p.softmax_scale_log2, [](float(&)[kRowTiles][2]) {});  // the warp's own
      }
      const Uint32 values = wait_slot();
      if (seen) {
        clear_values(values, first_key);
        if constexpr (Spec::kPageFactors) multiply_probabilities();
        value_product(values);
      }
      leave_slot();
    }
  }

  // ---- results

  /// This warp's rows to shared memory.
  ONEPASS_DEVICE void share_rows() const {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * t + accumulator_place(lane, r).column, index = warp * kTileM + row;
        const float sum = RowsAlongN::sum(softmax.sum[t][r]);
        if (lane < 4) {
          joint_max[index] = softmax.max[t][r];
          joint_sum[index] = sum;
        }
#pragma unroll
        for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int element = RowsAlongN::element(r, i);
            const int column = 16 * tile + Stored::out_column(accumulator_place(lane, element).row);
            const float x = o[t][tile][element];
            joint_out[index * kPitch + column] = Spec::kPageFactors ? x * __int_as_float(value_exponent << 23) : x;
          }
        }
      }
    }
  }

  /// Four columns of a row over the keys of all warps, normalised, and the row's lse.
  struct Piece {
    float4 out;
    float lse;
  };

  ONEPASS_DEVICE static void add(float4& sum, float factor, const float4& x) {
    sum.x += factor * x.x;
    sum.y += factor * x.y;
    sum.z += factor * x.z;
    sum.w += factor * x.w;
  }
  ONEPASS_DEVICE static void multiply(float4& x, float factor) {
    x.x *= factor;
    x.y *= factor;
    x.z *= factor;
    x.w *= factor;
  }

  ONEPASS_DEVICE Piece join_warps(int row, int column, float sink) const {
    float larger = -infinity(), total = 0.0f;
#pragma unroll
    for (int w = 0; w < kConsumers; ++w) larger = fmaxf(larger, joint_max[w * kTileM + row]);
    Piece piece = {};
#pragma unroll
    for (int w = 0; w < kConsumers; ++w) {
      const int index = w * kTileM + row;
      const float correction = correction_to(larger, joint_max[index], p.softmax_scale_log2);
      total += correction * joint_sum[index];
      add(piece.out, correction, *reinterpret_cast<const float4*>(joint_out + index * kPitch + column));
    }
    const RowResult result = finish_row(larger, total, p.softmax_scale_log2, sink);
    constexpr bool kFactor = Stored::kEightBits && !Spec::kPageFactors;
    multiply(piece.out, kFactor ? result.factor * value_factor : result.factor);
    piece.lse = result.lse;
    return piece;
  }

  /// Over all parts of the keys. load(part, row, column): the same piece of that part.
  template <class Load>
  ONEPASS_DEVICE Piece join_parts(int row, int column, float sink, Load load) const {
    constexpr int kAtOnce = 8;  // loads in flight
    float larger = sink, total = sink == -infinity() ? 0.0f : 1.0f;
    Piece piece = {};
    for (int first = 0; first < num_parts; first += kAtOnce) {
      Piece parts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        parts[i] = {{}, -infinity()};
        if (first + i < num_parts) parts[i] = load(first + i, row, column);
      }
      const float before = larger;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) larger = fmaxf(larger, parts[i].lse);
      const float correction = correction_to(larger, before, kLog2e);
      total *= correction;
      multiply(piece.out, correction);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = correction_to(larger, parts[i].lse, kLog2e);
        total += weight;
        add(piece.out, weight, parts[i].out);
      }
    }
    const bool empty = total == 0.0f;
    multiply(piece.out, empty ? 0.0f : 1.0f / total);
    piece.lse = empty ? -infinity() : larger + log2_approx(total) * kLn2;
    return piece;
  }

  ONEPASS_DEVICE float sink_of(int row) const {
    return p.sinks != nullptr ? p.sinks[head_of(row) * p.sinks_stride] : -infinity();
  }

  ONEPASS_DEVICE void store_piece(int row, int column, const Piece& piece) const {
    unsigned short* const out = static_cast<unsigned short*>(p.o.data) + row_offset(p.o, row) + column;
    store_global(out, uint2{ElementTraits<Element>::pack(piece.out.x, piece.out.y),
                            ElementTraits<Element>::pack(piece.out.z, piece.out.w)});
    if (p.lse != nullptr && column == 0) {
      p.lse[batch_idx * p.lse_batch_stride + head_of(row) * p.lse_head_stride +
            (seq.q_row0 + query_of(row)) * p.lse_row_stride] = piece.lse;
    }
  }

  /// Of a part of the tile's keys. A share has two such parts at most: of the item that it begins with, and of
  /// the one that it ends with, which is the first part of that item.
  ONEPASS_DEVICE Index64 part_index(int part, int row) const {
    if constexpr (kShares) {
      const int block = (first_share + part) * all.team.divisor + own_member();
      return static_cast<Index64>(2 * block + (part == 0 ? 1 : 0)) * kTileM + row;
    } else {
      const SplitRow place = split_row<Spec::kParts>(p, seq, batch_idx, head_of(row), query_of(row));
      return part * place.num_rows + place.index;
    }
  }

  /// This block's part, where the others find it: in the workspace, or in shared memory for its cluster.
  ONEPASS_DEVICE void store_part(int row, int column, const Piece& piece) const {
    if constexpr (Spec::kCluster) {
      *reinterpret_cast<float4*>(part_out + row * Spec::kHeadDimV + column) = piece.out;
      if (column == 0) part_lse[row] = piece.lse;
    } else {
      const Index64 index = part_index(part_idx, row);
      *reinterpret_cast<float4*>(p.split_o + index * Spec::kHeadDimV + column) = piece.out;
      if (column == 0) p.split_lse[index] = piece.lse;
    }
  }
  ONEPASS_DEVICE Piece load_part(int part, int row, int column) const {
    if constexpr (Spec::kCluster) {
      return {load_cluster(reinterpret_cast<const float4*>(part_out + row * Spec::kHeadDimV + column), part),
              load_cluster(part_lse + row, part)};
    } else {
      const Index64 index = part_index(part, row);
      return {load_l2(reinterpret_cast<const float4*>(p.split_o + index * Spec::kHeadDimV + column)),
              load_l2(p.split_lse + index)};
    }
  }

  /// All consumers: f(row, column) for every piece of the tile's rows or, of kShares shares, of one.
  template <int kShares = 1, class F>
  ONEPASS_DEVICE void for_each_piece(F f, int share = 0) const {
    for (int i = static_cast<int>(threadIdx.x) * kShares + share; i < num_rows * kPieces;
         i += 32 * kConsumers * kShares) {
      f(i / kPieces, i % kPieces * 4);
    }
  }

  /// The count of the tile's blocks that have stored their parts. A share has one at most that is not its
  /// first: of the item that it ends with.
  ONEPASS_DEVICE unsigned long long* arrivals() const {
    if constexpr (kShares) return all.arrivals + first_share * all.team.divisor + own_member();
    return all.arrivals + (batch_idx * p.tile_heads.divisor + head_k) * p.m_blocks.divisor + m_block;
  }

  ONEPASS_DEVICE static void sync_consumers() { named_barrier_sync(1, 32 * kConsumers); }

  /// All consumers, when the block's part is stored: whether all parts are.
  ONEPASS_DEVICE bool arrive_last() const {
    sync_consumers();
    if (threadIdx.x == 0) {
      control.is_last = count_up(arrivals()) + 1 == num_parts;
      if (control.is_last) free_count(arrivals());
    }
    sync_consumers();
    return control.is_last != 0;
  }

  /// The rows of an item.
  ONEPASS_DEVICE void consume() {
    find_rows();
    load_queries();
    if constexpr ((Spec::kSplit || kShares) && !Spec::kCluster) {
      if (threadIdx.x == 0 && num_parts > 1) claim_count(arrivals(), all.launch_id);  // while the first keys come
    }
    walk_keys();
    sync_consumers();  // every slot has been read, and the joint rows of the last item
    share_rows();
    sync_consumers();
    const auto store_rows = [&](int row, int column) {
      store_piece(row, column, join_warps(row, column, sink_of(row)));
    };
    const auto store_parts = [&](int row, int column) {
      store_part(row, column, join_warps(row, column, -infinity()));
    };
    const auto merge_parts = [&](int row, int column) {
      const auto load = [this](int part, int r, int c) { return load_part(part, r, c); };
      store_piece(row, column, join_parts(row, column, sink_of(row), load));
    };
    if constexpr (Spec::kCluster) {
      for_each_piece(store_parts);
      cluster_sync();
      for_each_piece<kClusterBlocks>(merge_parts, part_idx);
      cluster_sync();  // nobody reads this block's part any more
    } else if (num_parts > 1) {
      for_each_piece(store_parts);
      if (arrive_last()) for_each_piece(merge_parts);
    } else {
      for_each_piece(store_rows);
    }
  }

  ONEPASS_DEVICE void run(char* /*shared*/) {
    if (threadIdx.x == 0) {
      if (ring % kSwizzleBytes != 0) __trap();  // the entry asks for this alignment
      init_barriers();
    }
    if constexpr (Spec::kGather) read_late(all);  // as where a tensor map's address is taken
    if (!Spec::kGather && threadIdx.x == 32 * kConsumers) {
      prefetch_tensor_map(all.k);
      prefetch_tensor_map(all.v);
    }
    __syncthreads();
    if (is_producer()) {
      if constexpr (Spec::kGather) {
        for_each_item([this] { gather(); });
        cp_async_commit();
        cp_async_wait<0>();  // no thread ends before its copies
      } else {
        for_each_item([this] { produce(); });
        if constexpr (Spec::kPageFactors) {
          cp_async_commit();
          cp_async_wait<0>();
        }
      }
    } else {
      for_each_item([this] { consume(); });
    }
  }
};

}  // namespace onepass::cuda
