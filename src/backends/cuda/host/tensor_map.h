// Tensor maps: what the tensor memory accelerator is told of K, V or Q.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "backends/cuda/host/driver.h"
#include "backends/cuda/kernels/params.h"
#include "onepass/tensor_view.h"
#include "problem/attention_problem.h"

namespace onepass::cuda {

/// A [batch, rows, heads, head_dim] tensor of 16-bit elements, innermost dimension first, and the box of it
/// that one copy takes: 64 columns of some rows of a head. Columns and rows past the end come as zeros.
struct TiledTensor {
  void* data = nullptr;
  DType dtype = DType::BF16;
  std::array<std::uint64_t, 4> extents{};      // head_dim, rows, heads, batch
  std::array<std::uint64_t, 3> steps_bytes{};  // from row to row, head to head, batch to batch
  std::array<unsigned, 4> box{};
};

TiledTensor tiled_tensor(const TensorView& view, DType dtype, const TensorStrides& strides,
                         std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                         int box_rows);

/// By the driver. @throws EnvironmentError when it makes no tensor maps.
TensorMap encode_tensor_map(const Driver& driver, const TiledTensor& tensor);

/// What makes a tensor map: the driver or, in tests, something that stands for it.
using TensorMapEncoder = std::function<TensorMap(const TiledTensor&)>;

}  // namespace onepass::cuda
