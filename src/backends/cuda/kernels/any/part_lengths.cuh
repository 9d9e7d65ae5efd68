// any/part_lengths.cuh - the query rows of each sequence for launches that take sequences of different lengths
//
// Problem    a sequence has its length in the list of the last part with room for it, the first for any that has
//            none, and 0 in the others
// Work       one thread per sequence
#pragma once

#include "common/sequence.cuh"
#include "params.h"
#include "ptx/types.cuh"

namespace onepass::cuda {

template <class Spec>
struct PartLengths {
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;

  const PartLengthsParams& p;

  ONEPASS_DEVICE PartLengths(const PartLengthsParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const int b = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    if (b >= p.batch) return;
    const int length = p.seqused_q.data != nullptr
                           ? index_at(p.seqused_q, b)
                           : difference(index_at(p.cu_seqlens_q, b + 1), index_at(p.cu_seqlens_q, b));
    int own = p.num_parts - 1;  // lengths that make no sense are reported by its launch
    while (own > 0 && length > p.most_rows[own]) --own;
    for (int part = 0; part < p.num_parts; ++part) p.lengths[part * p.batch + b] = part == own ? length : 0;
  }
};

}  // namespace onepass::cuda
