// any/backward_sinks.cuh - the gradient of attention sinks
//
// Problem    dsinks_h = - sum over sequences and rows of exp(sink_h - lse) delta
// Work       a thread block for each head; a thread takes every kThreads-th row of a sequence, and the threads'
//            sums are added in their order: the same bits in every run, on every GPU
// Bound      memory: 8 bytes of a row and head
#pragma once

#include "common/gradient_row.cuh"
#include "common/math.cuh"
#include "common/sequence.cuh"
#include "params.h"

namespace onepass::cuda {

template <class Spec>
struct BackwardSinks {
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = kThreads * 4;

  const BackwardParams& p;

  ONEPASS_DEVICE BackwardSinks(const BackwardParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE void run(char* shared) const {
    const ForwardParams& f = p.forward;
    const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const float sink_log2 = f.sinks[head * f.sinks_stride] * kLog2e;
    float sum = 0.0f;
    for (int batch_idx = 0; batch_idx < f.batch; ++batch_idx) {
      const Sequence seq = sequence_at(f, batch_idx);
      const Index64 first = first_gradient_row(f, seq, batch_idx, head);
      for (int i = thread; i < seq.seqlen_q; i += kThreads) {
        const float lse_log2 = p.lse_log2[first + i];
        if (lse_log2 != infinity()) sum -= exp2_approx(sink_log2 - lse_log2) * p.delta[first + i];
      }
    }
    float* sums = reinterpret_cast<float*>(shared);
    sums[thread] = sum;
    for (int distance = kThreads / 2; distance > 0; distance /= 2) {
      __syncthreads();
      if (thread < distance) sums[thread] += sums[thread + distance];
    }
    if (thread == 0) p.dsinks[head * p.dsinks_stride] = sums[0];
  }
};

}  // namespace onepass::cuda
