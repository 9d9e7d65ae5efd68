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

/// How much L2 fetches from memory for a miss. Decode reads every byte once, from many places at a time: 256
/// bytes instead of 128 cost it 6 % of the bandwidth of an H200, while prefill gains 0.5 % from them.
enum class L2Fetch { Bytes128, Bytes256 };

/// What one copy takes of some rows of a head: 64 of their columns, or all, which are a multiple of 64 then.
enum class BoxColumns { Block, All };

/// A [batch, rows, heads, head_dim] tensor of 16-bit elements, or of pairs of 8-bit ones, innermost dimension
/// first, and the box of it that one copy takes. Rows past the end come as zeros and, in blocks, columns. All
/// columns: block after block of 64, each with all rows of the box; in blocks, the third dimension is none,
/// and no copy names it.
struct TiledTensor {
  void* data = nullptr;
  DType dtype = DType::BF16;
  BoxColumns columns = BoxColumns::Block;
  std::array<std::uint64_t, 5> extents{};  // columns, rows, blocks of columns, heads, batch
  std::array<std::uint64_t, 4>
      steps_bytes{};  // from row to row, block to block, head to head, batch to batch
  std::array<unsigned, 5> box{};
  L2Fetch fetch = L2Fetch::Bytes256;
};

TiledTensor tiled_tensor(const TensorView& view, DType dtype, const TensorStrides& strides,
                         std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                         int box_rows, BoxColumns columns, L2Fetch fetch);

/// By the driver. @throws EnvironmentError when it makes no tensor maps.
TensorMap encode_tensor_map(const Driver& driver, const TiledTensor& tensor);

/// What makes a tensor map: the driver or, in tests, something that stands for it.
using TensorMapEncoder = std::function<TensorMap(const TiledTensor&)>;

}  // namespace onepass::cuda
