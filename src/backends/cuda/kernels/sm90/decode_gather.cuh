// Keys of pages that no box of the tensor memory accelerator serves (a page is no multiple of the eight rows
// after which the swizzle repeats): row by row through the block table by cp.async, 16 bytes a lane, each to
// its swizzled place in the slot. A row that nobody wants is not read and arrives as zeros.
//
// Warps      kGatherWarps, each with its own keys of every tile; a lane looks up the pages of one key or of
//            some, a tile ahead, and the others ask it by shuffle. A copy instruction of a warp brings 512
//            bytes, two rows at head_dim 128, and takes five or six others with it (two shuffles, an address
//            of 64 bits, a place; in SASS). A multiprocessor's share of the bandwidth, 34 bytes a nanosecond,
//            is one of them every 26 cycles. One warp might do it, but what it waits for (a slot, table
//            entries, its shuffles) would be on the way of the copies; two have 52 cycles for each, 104 where
//            two blocks share a processor. A third and more cost the consumers registers: two blocks of seven
//            warps have 128 for each thread, of five or six 168
// In flight  34 bytes a nanosecond for about a microsecond are 34 KB, or 68 copies; the ring has room for 96
//            KiB or more in each block, and copies need no register. So the ring says what is in flight, as it
//            does for boxes
// Ordering   a barrier is told of a thread's copies when they have landed (cp.async.mbarrier.arrive.noinc), so
//            it counts all threads of these warps. All accesses to the slot are of the generic proxy
#pragma once

#include "params.h"
#include "ptx/cp_async.cuh"
#include "ptx/types.cuh"
#include "sm90/decode_layout.h"
#include "sm90/warp_scores.cuh"

namespace onepass::cuda {

template <class Spec>
struct DecodeGather {
  static constexpr int kElementBytes = sizeof(typename Spec::Stored);
  static constexpr int kWarpKeys = Spec::kTileN / kGatherWarps;  // of a tile
  static constexpr int kLookUps = kWarpKeys / 32;                // of a lane: keys lane, lane + 32, ...
  static_assert(kWarpKeys % 32 == 0, "every lane looks up as many keys");

  /// Table entries of this lane's keys; -1 past the table.
  struct Pages {
    int page[kLookUps];
  };

  /// Where rows begin, in bytes from the pool's first for this head, and in which page: of this lane's keys;
  /// and which of the warp's keys exist.
  struct Rows {
    Index64 k[kLookUps], v[kLookUps];
    Uint32 inside[kLookUps];
    int page[kLookUps];  // of keys that exist, else 0
  };

  const ForwardParams& p;
  int lane, warp;  // of those that gather

  ONEPASS_DEVICE DecodeGather(const ForwardParams& params, int own_lane, int own_warp)
      : p(params), lane(own_lane), warp(own_warp) {}

  ONEPASS_DEVICE int key_at(int n, int look_up) const {
    return n * Spec::kTileN + warp * kWarpKeys + 32 * look_up + lane;
  }

  ONEPASS_DEVICE Pages look_up(int batch, int n) const {
    Pages pages;
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) {
      const int column = p.page_size.quotient(key_at(n, i));
      pages.page[i] = -1;
      if (column < p.max_pages) {
        pages.page[i] = p.block_table[batch * p.table_batch_stride + column * p.table_page_stride];
      }
    }
    return pages;
  }

  /// Of tile n, of which some row sees the keys from key_begin to key_end.
  ONEPASS_DEVICE Rows find_rows(const Pages& pages, int n, int key_begin, int key_end) const {
    Rows rows;
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) {
      const int key = key_at(n, i), page = pages.page[i];
      bool inside = key >= key_begin && key < key_end;
      if (inside && (page < 0 || page >= p.num_pages)) {
        *p.error_flag = static_cast<int>(KernelError::PageOutOfPool);
        inside = false;
      }
      const int slot = p.page_size.remainder(key, p.page_size.quotient(key));
      rows.k[i] = inside ? (page * p.k.batch_stride + slot * p.k.row_stride) * kElementBytes : 0;
      rows.v[i] = inside ? (page * p.v.batch_stride + slot * p.v.row_stride) * kElementBytes : 0;
      rows.page[i] = inside ? page : 0;
      rows.inside[i] = __ballot_sync(0xffffffffu, inside);
    }
    return rows;
  }

  /// The first row of a head.
  ONEPASS_DEVICE static const char* head_of(const TensorParams& t, int head_k) {
    return static_cast<const char*>(t.data) + head_k * t.head_stride * kElementBytes;
  }

  /// This warp's rows of a tile of kColumns of 16 bits, in blocks of 64 with all keys each. `rows` is k or v
  /// of find_rows, `head` its head_of.
  template <int kColumns>
  ONEPASS_DEVICE void copy_rows(Uint32 slot, const char* head, const Index64 (&rows)[kLookUps],
                                const Uint32 (&inside)[kLookUps]) const {
    constexpr int kRowBytes = 2 * kColumns;
    constexpr int kPieces = (kRowBytes + 31) / 32 * 2;  // of 16 bytes: consumers read pairs of them
    constexpr int kLanes = kPieces <= 2 ? 2 : kPieces <= 4 ? 4 : kPieces <= 8 ? 8 : kPieces <= 16 ? 16 : 32;
    constexpr int kRows = 32 / kLanes;  // at once
    static_assert(kPieces <= 32, "a warp copies whole rows");
    const int piece = lane % kLanes, own_row = lane / kLanes;
    const bool copies = kPieces == kLanes || piece < kPieces;
    const int bytes = kPieces * 16 == kRowBytes || piece * 16 < kRowBytes ? 16 : 0;
    const char* const source = head + piece * 16;
    const Uint32 target = slot + piece / 8 * (128 * Spec::kTileN) + (warp * kWarpKeys + own_row) * 128;
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) {
      const auto copy = [&](int row, bool exists) {  // counts from the look-up's first
        const Index64 offset = shuffled(rows[i], row + own_row);
        if (copies) {
          cp_async<16>(swizzled(target + (32 * i + row) * 128, row + own_row, piece), source + offset,
                       exists ? bytes : 0);
        }
      };
      if (inside[i] == 0xffffffffu) {
#pragma unroll
        for (int row = 0; row < 32; row += kRows) copy(row, true);
      } else {
#pragma unroll 1  // where keys begin and end
        for (int row = 0; row < 32; row += kRows) copy(row, (inside[i] >> (row + own_row) & 1) != 0);
      }
    }
  }

 private:
  ONEPASS_DEVICE static Index64 shuffled(Index64 x, int source_lane) {
    const int low = __shfl_sync(0xffffffffu, static_cast<int>(x), source_lane);
    const int high = __shfl_sync(0xffffffffu, static_cast<int>(x >> 32), source_lane);
    return static_cast<Index64>(static_cast<Uint64>(static_cast<Uint32>(high)) << 32 |
                                static_cast<Uint32>(low));
  }
};

}  // namespace onepass::cuda
