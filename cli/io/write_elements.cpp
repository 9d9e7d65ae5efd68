#include "io/write_elements.h"

#include <array>
#include <cstring>

namespace onepass::io {
namespace {

bool row_major(const TensorView& view) {
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    const auto dim = static_cast<std::size_t>(i);
    if (view.shape[dim] != 1 && view.strides[dim] != stride) return false;
    stride *= view.shape[dim];
  }
  return true;
}

/// Collects elements and hands them on in large pieces.
class Gather {
 public:
  Gather(ByteSink& sink, std::size_t element_bytes) : sink_(sink), element_bytes_(element_bytes) {}

  void row(const std::byte* first, std::int64_t count, std::int64_t stride_bytes) {
    for (std::int64_t i = 0; i < count; ++i, first += stride_bytes) {
      if (used_ + element_bytes_ > buffer_.size()) flush();
      std::memcpy(buffer_.data() + used_, first, element_bytes_);
      used_ += element_bytes_;
    }
  }

  void flush() {
    sink_.write(std::span(buffer_).first(used_));
    used_ = 0;
  }

 private:
  ByteSink& sink_;
  std::size_t element_bytes_;
  std::size_t used_ = 0;
  std::array<std::byte, 1 << 16> buffer_{};
};

}  // namespace

void write_elements(ByteSink& sink, const TensorView& view) {
  if (view.num_elements() == 0) return;
  const auto* data = static_cast<const std::byte*>(view.data);
  const std::int64_t element_bytes = dtype_bytes(view.dtype);
  if (row_major(view)) {
    sink.write(std::span(data, static_cast<std::size_t>(view.num_elements() * element_bytes)));
    return;
  }
  Gather gather(sink, static_cast<std::size_t>(element_bytes));
  const auto last = static_cast<std::size_t>(view.rank - 1);
  std::array<std::int64_t, TensorView::kMaxRank> index{};  // of the row to write; its last place stays 0
  for (bool more = true; more;) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < last; ++i) offset += index[i] * view.strides[i];
    gather.row(data + offset * element_bytes, view.shape[last], view.strides[last] * element_bytes);
    more = false;
    for (std::size_t i = last; i-- > 0 && !more;) {
      more = ++index[i] < view.shape[i];
      if (!more) index[i] = 0;
    }
  }
  gather.flush();
}

}  // namespace onepass::io
