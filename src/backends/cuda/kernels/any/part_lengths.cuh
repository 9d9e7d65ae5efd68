// any/part_lengths.cuh - the query rows of each sequence for two launches: one takes those of many, one those of few
//
// Problem    a sequence of up to few_rows rows has its length in `few` and 0 in `many`, any other the reverse
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
    const bool few = length <= p.few_rows;  // one that makes no sense is reported by its launch
    p.few[b] = few ? length : 0;
    p.many[b] = few ? 0 : length;
  }
};

}  // namespace onepass::cuda
