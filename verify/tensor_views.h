// The tensors of a call as a list.
#pragma once

#include <array>

#include "onepass/attention.h"

namespace onepass::verify {

inline std::array<TensorView*, 15> all_views(ForwardArguments& a) {
  return {&a.q,
          &a.k,
          &a.v,
          &a.out,
          &a.softmax_lse,
          &a.seqused_q,
          &a.seqused_k,
          &a.block_table,
          &a.cu_seqlens_q,
          &a.cu_seqlens_k,
          &a.bias,
          &a.alibi_slopes,
          &a.sinks,
          &a.k_descale,
          &a.v_descale};
}

}  // namespace onepass::verify
