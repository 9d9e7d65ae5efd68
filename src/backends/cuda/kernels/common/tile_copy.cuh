// Rows of a tensor in global memory to a tile in shared memory, zero-filled past the end.
#pragma once

#include "common/shared_row.h"
#include "params.h"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

/// kRows rows of kHeadDim elements by kThreads threads, eight threads a row, each taking every eighth piece
/// of kLoadBytes. Bytes past head_dim become zeros and are not read.
template <class Row, int kRows, int kHeadDim, int kThreads, int kLoadBytes>
struct TileCopy {
  static constexpr int kThreadsPerRow = 8;
  static constexpr int kRowsPerPass = kThreads / kThreadsPerRow;
  static constexpr int kPasses = (kRows + kRowsPerPass - 1) / kRowsPerPass;
  static constexpr int kPieces = Row::kPadded * 2 / kLoadBytes;  // of a row
  static constexpr int kGroups = (kPieces + kThreadsPerRow - 1) / kThreadsPerRow;

  ONEPASS_DEVICE static int thread_row() { return static_cast<int>(threadIdx.x) / kThreadsPerRow; }
  ONEPASS_DEVICE static int thread_piece() { return static_cast<int>(threadIdx.x) % kThreadsPerRow; }

  /// Rows that all exist and follow each other at row_stride, copied in kPasses passes, which the caller may
  /// issue at different times: one addition each, everything else is a constant.
  struct Strided {
    Uint32 target;
    const unsigned short* source;

    ONEPASS_DEVICE void pass(int index, Index64 row_stride) {
      if (kRows % kRowsPerPass == 0 || index * kRowsPerPass + thread_row() < kRows) {
        copy_row(target + index * kRowsPerPass * Row::kPitch, source, true);
      }
      source += kRowsPerPass * row_stride;
    }
  };

  ONEPASS_DEVICE static Strided strided(Uint32 shared, const unsigned short* first_row, Index64 row_stride) {
    return {shared + Row::offset(thread_row(), thread_piece() * kLoadBytes),
            first_row + (thread_row() * row_stride + thread_piece() * (kLoadBytes / 2))};
  }

  /// row_address(row, inside&) gives the address of a row and whether it exists; others become zeros.
  template <class RowAddress>
  ONEPASS_DEVICE static void checked(Uint32 shared, RowAddress row_address) {
#pragma unroll 1  // rare, or bound by the look-up of pages: small code matters more
    for (int row = thread_row(); row < kRows; row += kRowsPerPass) {
      bool inside = false;
      const unsigned short* source = row_address(row, inside);
      copy_row(shared + Row::offset(row, thread_piece() * kLoadBytes),
               source + thread_piece() * (kLoadBytes / 2), inside);
    }
  }

 private:
  /// The thread's pieces of a row; source and target are of its first, every further one is a constant away.
  ONEPASS_DEVICE static void copy_row(Uint32 target, const unsigned short* source, bool inside) {
    const int first = thread_piece() * kLoadBytes;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      constexpr int kStep = kThreadsPerRow * kLoadBytes;
      const int begin = first + group * kStep;
      if ((group + 1) * kThreadsPerRow > kPieces && begin >= Row::kPadded * 2) break;
      int valid = inside ? kLoadBytes : 0;
      if ((group + 1) * kStep > kHeadDim * 2) valid = inside ? clamp_bytes(kHeadDim * 2 - begin) : 0;
      copy_piece(Row::along(target, group * kStep), source + group * (kStep / 2), valid);
    }
  }
  ONEPASS_DEVICE static int clamp_bytes(int left) {
    return left < 0 ? 0 : left < kLoadBytes ? left : kLoadBytes;
  }

  ONEPASS_DEVICE static void copy_piece(Uint32 target, const unsigned short* source, int valid) {
    if constexpr (kLoadBytes == 2) {
      const unsigned short value = valid > 0 ? *source : static_cast<unsigned short>(0);
      store_shared(target, value);
    } else {
      cp_async<kLoadBytes>(target, source, valid);
    }
  }
};

/// Address of key (or value) row j of one sequence and head. `base` is the head's element 0 of row 0 (dense
/// and packed) or of page 0, slot 0; `table` the sequence's pages. Rows outside [key_begin, key_end) do not
/// exist for the tile.
template <bool kPaged>
ONEPASS_DEVICE const unsigned short* key_row(const ForwardParams& p, const TensorParams& t,
                                             const unsigned short* base, const int* table, int key_begin,
                                             int key_end, int j, bool& inside) {
  inside = j >= key_begin && j < key_end;
  if constexpr (!kPaged) return base + (inside ? j * t.row_stride : 0);
  if (!inside) return base;
  const int column = p.page_size.quotient(j);
  const int page = table[column * p.table_page_stride];
  if (page < 0 || page >= p.num_pages) {
    *p.error_flag = static_cast<int>(KernelError::PageOutOfPool);
    inside = false;
    return base;
  }
  return base + page * t.batch_stride + p.page_size.remainder(j, column) * t.row_stride;
}

}  // namespace onepass::cuda
