// sm90/backward_prepare.cuh - what sm90/backward.cuh needs of each query row, and its counters at 0
//
// Problem    delta = dot(dO, O) - dlse and lse to base 2 (common/gradient_row.cuh)
// Tile       a block of kTileM rows of one head; a warp has some that follow each other
// Pipeline   none: a thread asks for all that it reads before it uses any of it, 8 to 32 pieces of 16 bytes
// Bound      memory: O and dO are read once
// Numerics   f32 sums
#pragma once

#include "common/gradient_row.cuh"
#include "common/sequence.cuh"
#include "params.h"
#include "ptx/global.cuh"
#include "ptx/math.cuh"

namespace onepass::cuda {

template <class Spec>
struct BackwardPrepareSm90 {
  using Element = typename Spec::Element;
  static constexpr int kThreads = 32 * Spec::kWarps;
  static constexpr int kSharedBytes = 0;
  static constexpr int kPieces = Spec::kHeadDimV / 8;                           // of a row, 16 bytes each
  static constexpr int kLanes = kPieces <= 8 ? 8 : kPieces <= 16 ? 16 : 32;     // that have one each
  static constexpr int kRowsAtOnce = 32 / kLanes;                               // of a warp
  static constexpr int kRows = Spec::kTileM / (Spec::kWarps * kRowsAtOnce);     // of a thread, one after another
  static_assert(Spec::kHeadDimV % 8 == 0 && kPieces <= kLanes, "a lane has one piece of a row");
  static_assert(Spec::kTileM == kRows * kRowsAtOnce * Spec::kWarps && kRows <= kLanes,
                "all threads have the same number of rows, and each row a lane that stores its results");

  const Sm90BackwardParams& all;
  const ForwardParams& p;
  ONEPASS_DEVICE BackwardPrepareSm90(const Sm90BackwardParams& params, char* /*shared*/)
      : all(params), p(params.backward.forward) {}

  /// The thread's pieces of a tensor whose piece of its first row this is; zeros past the sequence's end.
  ONEPASS_DEVICE static void load_pieces(uint4 (&pieces)[kRows], const TensorParams& t, Index64 first, int rows) {
    const unsigned short* const data = static_cast<const unsigned short*>(t.data) + first;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      pieces[i] = uint4{0, 0, 0, 0};
      if (i * kRowsAtOnce < rows) pieces[i] = load_once(data + i * kRowsAtOnce * t.row_stride);
    }
  }
  ONEPASS_DEVICE static float product(Uint32 a, Uint32 b, float sum) {
    const auto value = [](Uint32 bits) {
      return ElementTraits<Element>::to_float(Element{static_cast<unsigned short>(bits)});
    };
    return fmaf(value(a >> 16), value(b >> 16), fmaf(value(a), value(b), sum));
  }

  ONEPASS_DEVICE void run(char* /*shared*/) {
    const int number = static_cast<int>(blockIdx.x), above = p.tile_heads.quotient(number);
    const int head = p.tile_heads.remainder(number, above);
    const int batch_idx = p.m_blocks.quotient(above), m_block = p.m_blocks.remainder(above, batch_idx);
    if (number == 0 && threadIdx.x == 0) *all.ticket = 0;
    const Sequence seq = sequence_at(p, batch_idx);
    if (m_block * Spec::kTileM >= seq.seqlen_q) return;

    const int lane = static_cast<int>(threadIdx.x % kLanes);
    const int row_in_block = static_cast<int>(threadIdx.x / 32 * (kRows * kRowsAtOnce) + threadIdx.x % 32 / kLanes);
    const int row0 = m_block * Spec::kTileM + row_in_block;  // then every kRowsAtOnce-th one
    const int own_row = row0 + lane * kRowsAtOnce;           // whose results the lane stores, if it is one of these
    GivenStatistics statistics;
    if (lane < kRows && own_row < seq.seqlen_q)
      statistics = load_given_statistics(all.backward, batch_idx, head, seq.q_row0 + own_row);
    const auto piece = [&](const TensorParams& t) {
      return batch_idx * t.batch_stride + (seq.q_row0 + row0) * t.row_stride + head * t.head_stride + 8 * lane;
    };
    const int rows = lane < kPieces ? seq.seqlen_q - row0 : 0;  // to be read
    uint4 o[kRows], dout[kRows];
    load_pieces(o, p.o, piece(p.o), rows);
    load_pieces(dout, all.backward.dout, piece(all.backward.dout), rows);

    float dot = 0;  // of the own row
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float sum = product(o[i].x, dout[i].x, 0.0f);
      sum = product(o[i].w, dout[i].w, product(o[i].z, dout[i].z, product(o[i].y, dout[i].y, sum)));
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      if (lane == i) dot = sum;
    }
    const Index64 first = first_gradient_row(p, seq, batch_idx, head);
    if (lane < kRows) store_row_statistics(all.backward, first + own_row, statistics, dot);
    if (threadIdx.x == 0) all.turns[first / Spec::kTileM + m_block] = 0;
  }
};

}  // namespace onepass::cuda
