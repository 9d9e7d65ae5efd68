// sm90/backward_prepare.cuh - what sm90/backward.cuh needs of each query row, and its counters at 0
//
// Problem    delta = dot(dO, O) - dlse and lse to base 2; infinity for a row without keys, so that its P is 0
// Tile       a block of kTileM rows of one head
// Numerics   f32 sums
#pragma once

#include "common/gradient_row.cuh"
#include "common/math.cuh"
#include "common/sequence.cuh"
#include "params.h"

namespace onepass::cuda {

template <class Spec>
struct BackwardPrepareSm90 {
  using Element = typename Spec::Element;
  static constexpr int kThreads = 32 * Spec::kWarps;
  static constexpr int kSharedBytes = 0;
  static constexpr int kLanes = Spec::kHeadDimV <= 128 ? 16 : 32;  // of a row, eight columns each
  static constexpr int kRowsAtOnce = kThreads / kLanes;
  static_assert(Spec::kHeadDimV % 8 == 0 && Spec::kHeadDimV <= 8 * kLanes, "a lane has one piece of a row");
  static_assert(Spec::kTileM % kRowsAtOnce == 0, "all threads have the same rows to do");

  const Sm90BackwardParams& all;
  const ForwardParams& p;
  ONEPASS_DEVICE BackwardPrepareSm90(const Sm90BackwardParams& params, char* /*shared*/)
      : all(params), p(params.backward.forward) {}

  ONEPASS_DEVICE static uint4 piece(const TensorParams& t, int batch_idx, int row, int head, int column) {
    return *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(t.data) +
                                           batch_idx * t.batch_stride + row * t.row_stride +
                                           head * t.head_stride + column);
  }
  ONEPASS_DEVICE static float product(Uint32 a, Uint32 b, float sum) {
    const auto value = [](Uint32 bits) {
      return ElementTraits<Element>::to_float(Element{static_cast<unsigned short>(bits)});
    };
    return fmaf(value(a >> 16), value(b >> 16), fmaf(value(a), value(b), sum));
  }

  ONEPASS_DEVICE void run(char* /*shared*/) {
    const int number = static_cast<int>(blockIdx.x), above = number / p.num_heads_q;
    const int head = number - above * p.num_heads_q;
    const int batch_idx = p.m_blocks.quotient(above), m_block = p.m_blocks.remainder(above, batch_idx);
    if (number == 0 && threadIdx.x == 0) *all.ticket = 0;
    const Sequence seq = sequence_at(p, batch_idx);
    if (m_block * Spec::kTileM >= seq.seqlen_q) return;
    const Index64 first = first_gradient_row(p, seq, batch_idx, head) + m_block * Spec::kTileM;
    if (threadIdx.x == 0) all.turns[first / Spec::kTileM] = 0;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) / kLanes; i < Spec::kTileM; i += kRowsAtOnce) {
      const int row = m_block * Spec::kTileM + i;
      const bool inside = row < seq.seqlen_q;
      float delta = 0;
      if (inside && lane < Spec::kHeadDimV / 8) {
        const uint4 o = piece(p.o, batch_idx, seq.q_row0 + row, head, 8 * lane);
        const uint4 d = piece(all.backward.dout, batch_idx, seq.q_row0 + row, head, 8 * lane);
        delta = product(o.w, d.w, product(o.z, d.z, product(o.y, d.y, product(o.x, d.x, 0.0f))));
      }
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2)
        delta += __shfl_xor_sync(0xffffffffu, delta, distance);
      if (lane != 0) continue;
      float lse = infinity();
      if (inside) {
        const Index64 at = seq.q_row0 + row;
        lse =
            p.lse[batch_idx * p.lse_batch_stride + head * p.lse_head_stride + at * p.lse_row_stride] * kLog2e;
        if (all.backward.dlse != nullptr) {
          delta -=
              all.backward.dlse[batch_idx * all.backward.dlse_batch_stride +
                                head * all.backward.dlse_head_stride + at * all.backward.dlse_row_stride];
        }
      }
      const bool sees_keys = lse != -infinity();
      all.backward.lse_log2[first + i] = sees_keys ? lse : infinity();
      all.backward.delta[first + i] = sees_keys ? delta : 0.0f;  // whatever its dO is
    }
  }
};

}  // namespace onepass::cuda
