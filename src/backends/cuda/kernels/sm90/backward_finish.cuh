// sm90/backward_finish.cuh - dQ from the sums of sm90/backward.cuh
//
// Problem    dQ = scale * sums, rounded; 0 for a block that no tile has added to
// Tile       a block of kTileM rows of one head, by as many threads as the consumers of sm90/backward.cuh
#pragma once

#include "common/gradient_row.cuh"
#include "common/sequence.cuh"
#include "params.h"
#include "sm90/backward.cuh"
#include "sm90/backward_tiles.cuh"
#include "sm90/row_store.cuh"

namespace onepass::cuda {

template <class Spec>
struct BackwardFinishSm90 {
  using Element = typename Spec::Element;
  using Backward = BackwardSm90<Spec>;
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  // Of the first warpgroup and of the second, which may have zeros past the end.
  static constexpr int kColumns = Backward::kSplitRows ? Spec::kHeadDim : Backward::kDqRegisters * 2;
  static constexpr int kLastColumns = Backward::kSplitRows ? Spec::kHeadDim : Spec::kHeadDim - kColumns;

  const Sm90BackwardParams& all;
  const ForwardParams& p;
  ONEPASS_DEVICE BackwardFinishSm90(const Sm90BackwardParams& params, char* /*shared*/)
      : all(params), p(params.backward.forward) {}

  ONEPASS_DEVICE void run(char* /*shared*/) {
    const int number = static_cast<int>(blockIdx.x), above = number / p.num_heads_q;
    const int head = number - above * p.num_heads_q;
    const int batch_idx = p.m_blocks.quotient(above), m_block = p.m_blocks.remainder(above, batch_idx);
    const Sequence seq = sequence_at(p, batch_idx);
    const int row0 = m_block * Spec::kTileM;
    if (row0 >= seq.seqlen_q) return;
    BasicKeyBand<int> band{-kMostCountedRows, kMostCountedRows};
    if constexpr (Spec::kMaskEnd) band = narrow_key_band(p, seq);
    const auto range = visited_blocks<Spec::kTileM, Spec::kTileN>(band, seq, row0);
    const bool added = range.n_block_min < range.n_block_max;
    const Index64 block = first_gradient_row(p, seq, batch_idx, head) / Spec::kTileM + m_block;
    const int half = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
    const float4* const sums = reinterpret_cast<const float4*>(all.dq_sums + block * Backward::kDqFloats +
                                                               half * 128 * Backward::kDqRegisters) +
                               thread;
    float4 dq[Backward::kDqRegisters / 4];
#pragma unroll
    for (int i = 0; i < Backward::kDqRegisters / 4; ++i)
      dq[i] = added ? load_l2(sums + 128 * i) : float4{0, 0, 0, 0};
    const int column0 = Backward::kSplitRows ? 0 : half * kColumns;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int own_row = 16 * (thread / 32) + thread % 32 / 4 + 8 * r;
      const int row = row0 + own_row + (Backward::kSplitRows ? 64 * half : 0);
      unsigned short* const out =
          static_cast<unsigned short*>(all.backward.dq.data) + batch_idx * all.backward.dq.batch_stride +
          (seq.q_row0 + row) * all.backward.dq.row_stride + head * all.backward.dq.head_stride + column0;
      const auto packed = [&](int i) {
        return r == 0 ? ElementTraits<Element>::pack(dq[i].x * p.softmax_scale, dq[i].y * p.softmax_scale)
                      : ElementTraits<Element>::pack(dq[i].z * p.softmax_scale, dq[i].w * p.softmax_scale);
      };
      if (half == 0) {
        store_row<kColumns>(out, row < seq.seqlen_q, packed);
      } else {
        store_row<kLastColumns>(out, row < seq.seqlen_q, packed);
      }
    }
  }
};

}  // namespace onepass::cuda
