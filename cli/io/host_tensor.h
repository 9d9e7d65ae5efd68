// A tensor that owns its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "onepass/tensor_view.h"

namespace onepass::io {

struct AlignedDelete {
  void operator()(std::byte* memory) const noexcept;
};

struct HostTensor {
  /// Cache lines and vector registers: the widest alignment that a CPU of today asks for.
  static constexpr std::size_t kAlignment = 64;

  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;                      ///< 1 to TensorView::kMaxRank extents
  std::vector<std::int64_t> strides;                    ///< in elements, one per extent
  std::unique_ptr<std::byte[], AlignedDelete> storage;  ///< element [0, 0, ...] comes first

  std::int64_t num_elements() const;
  std::size_t num_bytes() const;
  /// Valid as long as this tensor keeps its storage. Empty (absent) for a default-constructed tensor.
  TensorView view() const;
};

/// A row-major tensor with indeterminate contents.
/// @throws InvalidArgument when shape has no or more than TensorView::kMaxRank extents, one is negative, or
///   the bytes overflow 64 bits; std::bad_alloc.
HostTensor allocate_tensor(DType dtype, std::span<const std::int64_t> shape);

}  // namespace onepass::io
