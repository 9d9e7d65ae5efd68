// The tensors of a call as a list.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "onepass/attention.h"
#include "support/float_types.h"

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

inline std::array<TensorView*, 22> all_views(BackwardArguments& a) {
  std::array<TensorView*, 22> views{&a.dout, &a.dlse, &a.dq, &a.dk, &a.dv, &a.dsinks, &a.dbias};
  const auto forward = all_views(a.forward);
  std::copy(forward.begin(), forward.end(), views.begin() + 7);
  return views;
}

/// visit(number in row-major order, index, value) for every element of a float tensor.
template <class Visit>
void each_element(const TensorView& view, Visit visit) {
  std::array<std::int64_t, TensorView::kMaxRank> idx{};
  const auto rank = static_cast<std::size_t>(view.rank);
  for (std::int64_t n = 0; n < view.num_elements(); ++n) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < rank; ++d) offset += idx[d] * view.strides[d];
    visit(static_cast<std::size_t>(n), std::span<const std::int64_t>(idx.data(), rank),
          static_cast<double>(load_float(view.data, view.dtype, offset)));
    for (std::size_t d = rank; d-- > 0 && ++idx[d] == view.shape[d];) idx[d] = 0;
  }
}

}  // namespace onepass::verify
