#include "io/host_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "support/message.h"

namespace onepass::io {

void AlignedDelete::operator()(std::byte* memory) const noexcept {
  ::operator delete (memory, std::align_val_t{HostTensor::kAlignment});
}

std::int64_t HostTensor::num_elements() const { return view().num_elements(); }

std::size_t HostTensor::num_bytes() const {
  return static_cast<std::size_t>(num_elements() * dtype_bytes(dtype));
}

TensorView HostTensor::view() const {
  if (shape.empty()) return {};
  return make_view(storage.get(), dtype, shape, strides);
}

HostTensor allocate_tensor(DType dtype, std::span<const std::int64_t> shape) {
  std::int64_t bytes = dtype_bytes(dtype);
  bool valid = !shape.empty() && shape.size() <= TensorView::kMaxRank;
  for (const std::int64_t extent : shape) {
    // Extents of 0 count as 1, so that strides cannot overflow either.
    valid = valid && extent >= 0 && !__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes);
  }
  if (!valid) {
    throw_invalid(
        "allocate_tensor", "shape is " + list_string(shape),
        fmt::format("1 to {} extents of 0 or more, together less than 2^63 bytes", TensorView::kMaxRank),
        "correct the shape");
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) bytes = 0;
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.shape.assign(shape.begin(), shape.end());
  tensor.strides.assign(shape.size(), 1);
  for (std::size_t i = shape.size() - 1; i > 0; --i) {
    tensor.strides[i - 1] = tensor.strides[i] * std::max<std::int64_t>(shape[i], 1);
  }
  tensor.storage.reset(static_cast<std::byte*>(
      ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{HostTensor::kAlignment})));
  return tensor;
}

}  // namespace onepass::io
