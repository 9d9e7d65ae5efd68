#include "verify/one_sequence.h"

#include <cstdint>
#include <cstring>

namespace onepass::verify {
namespace {

/// Moves data by so many steps along the first dimension.
void advance(TensorView& view, std::int64_t steps) {
  view.data = static_cast<char*>(view.data) + steps * view.strides[0] * dtype_bytes(view.dtype);
}

/// Tensors of the call whose first dimension counts sequences.
std::vector<TensorView*> batched(ForwardArguments& a) {
  std::vector<TensorView*> views;
  const bool packed_q = a.cu_seqlens_q.present();
  for (TensorView* view : {&a.q, &a.out, &a.softmax_lse}) {
    if (view->present() && !packed_q) views.push_back(view);
  }
  for (TensorView* view : {&a.k, &a.v}) {
    if (!a.cu_seqlens_k.present() && !a.block_table.present()) views.push_back(view);
  }
  for (TensorView* view : {&a.seqused_q, &a.seqused_k, &a.block_table}) {
    if (view->present()) views.push_back(view);
  }
  for (TensorView* view : {&a.alibi_slopes, &a.k_descale, &a.v_descale}) {
    if (view->present() && view->rank == 2) views.push_back(view);
  }
  if (a.bias.present() && a.bias.shape[0] > 1) views.push_back(&a.bias);
  return views;
}

std::int64_t index_at(const TensorView& view, std::int64_t i) {
  return static_cast<const std::int32_t*>(view.data)[i * view.strides[0]];
}

void append(std::vector<char>& bytes, const TensorView& view, std::int64_t offset) {
  const std::int64_t size = dtype_bytes(view.dtype);
  const char* data = static_cast<const char*>(view.data) + offset * size;
  bytes.insert(bytes.end(), data, data + size);
}

}  // namespace

ForwardArguments one_sequence(const ForwardArguments& args, std::int64_t b) {
  ForwardArguments alone = args;
  for (TensorView* view : batched(alone)) {
    advance(*view, b);
    view->shape[0] = 1;
  }
  for (TensorView* view : {&alone.cu_seqlens_q, &alone.cu_seqlens_k}) {
    if (!view->present()) continue;
    advance(*view, b);
    view->shape[0] = 2;
  }
  return alone;
}

ForwardArguments in_reverse(const ForwardArguments& args) {
  ForwardArguments reversed = args;
  for (TensorView* view : batched(reversed)) {
    advance(*view, view->shape[0] - 1);
    view->strides[0] = -view->strides[0];
  }
  return reversed;
}

std::vector<char> bytes_of_sequence(const ForwardArguments& args, std::int64_t b) {
  const TensorView &out = args.out, &lse = args.softmax_lse;
  const bool packed = args.cu_seqlens_q.present();
  const std::size_t row = packed ? 0 : 1;  // dimension of out
  const std::int64_t first = packed ? index_at(args.cu_seqlens_q, b) : 0;
  const std::int64_t rows = args.seqused_q.present() ? index_at(args.seqused_q, b)
                            : packed                 ? index_at(args.cu_seqlens_q, b + 1) - first
                                                     : out.shape[1];
  std::vector<char> bytes;
  for (std::int64_t i = first; i < first + rows; ++i) {
    for (std::int64_t h = 0; h < out.shape[row + 1]; ++h) {
      const std::int64_t of_head =
          (packed ? 0 : b * out.strides[0]) + i * out.strides[row] + h * out.strides[row + 1];
      for (std::int64_t d = 0; d < out.shape[row + 2]; ++d)
        append(bytes, out, of_head + d * out.strides[row + 2]);
      if (!lse.present()) continue;
      append(bytes, lse,
             packed ? h * lse.strides[0] + i * lse.strides[1]
                    : b * lse.strides[0] + h * lse.strides[1] + i * lse.strides[2]);
    }
  }
  return bytes;
}

}  // namespace onepass::verify
