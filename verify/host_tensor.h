// A small tensor with memory of its own, for tests that write their numbers down.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "onepass/tensor_view.h"
#include "support/float_types.h"
#include "verify/guarded_buffer.h"

namespace onepass::verify {

class HostTensor {
 public:
  using Shape = std::vector<std::int64_t>;

  /// Row-major; every element is NaN (-1 for i32) until set.
  HostTensor(DType dtype, const Shape& shape) : HostTensor(make_view(nullptr, dtype, shape), count(shape)) {}

  /// Any strides, which `elements` elements hold; the first is element [0, 0, ...].
  HostTensor(TensorView view, std::int64_t elements)
      : memory_(
            std::make_unique<GuardedBuffer>(static_cast<std::size_t>(elements * dtype_bytes(view.dtype)))),
        view_(view) {
    view_.data = memory_->data();
  }

  /// Element [i, j, ...] is f({i, j, ...}).
  template <class F>
  HostTensor(DType dtype, const Shape& shape, F f) : HostTensor(dtype, shape) {
    fill(f);
  }

  /// Index tensors.
  HostTensor(std::initializer_list<std::int32_t> values)
      : HostTensor(DType::I32, {static_cast<std::int64_t>(values.size())}) {
    std::int64_t n = 0;
    for (const std::int32_t x : values) static_cast<std::int32_t*>(view_.data)[n++] = x;
  }

  const TensorView& view() const { return view_; }
  const GuardedBuffer& memory() const { return *memory_; }
  GuardedBuffer& memory() { return *memory_; }

  float get(std::initializer_list<std::int64_t> idx) const {
    return load_float(view_.data, view_.dtype, offset(idx.begin()));
  }
  void set(std::initializer_list<std::int64_t> idx, float x) {
    store_float(view_.data, view_.dtype, offset(idx.begin()), x);
  }
  void set_bits(std::initializer_list<std::int64_t> idx, std::uint8_t bits) {  // 8-bit types
    static_cast<std::uint8_t*>(view_.data)[offset(idx.begin())] = bits;
  }

  template <class F>
  void fill(F f) {
    std::array<std::int64_t, TensorView::kMaxRank> idx{};
    const auto rank = static_cast<std::size_t>(view_.rank);
    for (std::int64_t n = 0; n < view_.num_elements(); ++n) {
      store_float(view_.data, view_.dtype, offset(idx.data()),
                  static_cast<float>(f(std::span<const std::int64_t>(idx.data(), rank))));
      for (std::size_t d = rank; d-- > 0 && ++idx[d] == view_.shape[d];) idx[d] = 0;
    }
  }

 private:
  static std::int64_t count(const Shape& shape) {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
  }

  std::int64_t offset(const std::int64_t* idx) const {
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(view_.rank); ++d) sum += idx[d] * view_.strides[d];
    return sum;
  }

  std::unique_ptr<GuardedBuffer> memory_;
  TensorView view_;
};

/// Elements that are all `x`.
inline auto constant(double x) {
  return [x](std::span<const std::int64_t>) { return x; };
}

}  // namespace onepass::verify
