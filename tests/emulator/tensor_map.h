// Tensor maps as the emulator reads them, and the copies that they describe. PTX ISA 5.5 (tensors).
#pragma once

#include <array>
#include <cstdint>

#include "backends/cuda/kernels/params.h"

namespace onepass::emulator {

/// What an opaque tensor map holds here: a tensor of 16-bit elements, innermost dimension first.
struct EmulatedTensorMap {
  const void* data;
  std::array<std::uint64_t, 5> extents;  // columns, rows, blocks of columns, heads, batch
  std::array<std::uint64_t, 4> steps_bytes;
  std::array<unsigned, 5> box;

  /// The element at these coordinates; 0 outside the tensor.
  std::uint16_t at(const std::array<int, 5>& coordinates) const;
};

cuda::TensorMap to_tensor_map(const EmulatedTensorMap& map);
EmulatedTensorMap from_tensor_map(const cuda::TensorMap& map);

/// cp.async.bulk.tensor with the 128-byte swizzle, of the box that begins at `first`: (column, row, block,
/// head, batch). The bytes arrive when somebody waits for the phase of the mbarrier that counts them; until
/// then they are poison.
void issue_tensor_copy(const cuda::TensorMap& map, std::int64_t mbarrier, std::int64_t shared_address,
                       const std::array<int, 5>& first);

}  // namespace onepass::emulator
