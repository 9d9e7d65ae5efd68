#include "backends/cuda/host/tensor_map.h"

#include <algorithm>
#include <tuple>

#include "backends/cuda/kernels/sm90/layout.h"
#include "support/message.h"

namespace onepass::cuda {
namespace {

// Values of the driver's enumerations (cuda.h since CUDA 12.0).
constexpr int kElementU16 = 1, kElementF16 = 6, kElementBf16 = 9, kNoInterleave = 0, kSwizzle128 = 3,
              kPromoteTo128Bytes = 2, kPromoteTo256Bytes = 3, kFillZeros = 0;

int element_of(DType dtype) {
  switch (dtype) {
    case DType::F16: return kElementF16;
    case DType::BF16: return kElementBf16;
    default: return kElementU16;  // two of 8 bits
  }
}

}  // namespace

TiledTensor tiled_tensor(const TensorView& view, DType dtype, const TensorStrides& strides,
                         std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                         int box_rows, BoxColumns columns, L2Fetch fetch) {
  const std::int64_t element_bytes = dtype_bytes(dtype);
  // The driver wants a multiple of 16 bytes also where a single element makes the stride meaningless.
  const auto bytes = [element_bytes](std::int64_t extent, std::int64_t stride) {
    return extent > 1 ? static_cast<std::uint64_t>(element_bytes * stride) : std::uint64_t{16};
  };
  const std::int64_t width = head_dim * element_bytes / 2;
  const auto blocks = static_cast<std::uint64_t>(columns == BoxColumns::All ? width / kBlockColumns : 1);
  return {.data = view.data,
          .dtype = dtype,
          .columns = columns,
          .extents = {static_cast<std::uint64_t>(width) / blocks, static_cast<std::uint64_t>(rows), blocks,
                      static_cast<std::uint64_t>(heads), static_cast<std::uint64_t>(batch)},
          .steps_bytes = {bytes(rows, strides.row), std::uint64_t{2} * kBlockColumns,
                          bytes(heads, strides.head), bytes(batch, strides.batch)},
          .box = {kBlockColumns, static_cast<unsigned>(box_rows), static_cast<unsigned>(blocks), 1, 1},
          .fetch = fetch};
}

TensorMap encode_tensor_map(const Driver& driver, const TiledTensor& tensor) {
  if (driver.api().cuTensorMapEncodeTiled == nullptr) {
    throw EnvironmentError(format_message("run", "the NVIDIA driver has no cuTensorMapEncodeTiled",
                                          "a driver of CUDA 12.0 or later on this GPU", "update the driver"));
  }
  constexpr std::array<unsigned, 5> kEveryElement = {1, 1, 1, 1, 1};
  auto [extents, steps_bytes, box] = std::tuple(tensor.extents, tensor.steps_bytes, tensor.box);
  unsigned rank = 5;
  if (tensor.columns == BoxColumns::Block) {
    const auto drop = [](auto& values, std::size_t i) {
      std::move(&values[i + 1], values.end(), &values[i]);
    };
    drop(extents, 2);
    drop(steps_bytes, 1);
    drop(box, 2);
    rank = 4;
  }
  TensorMap map{};
  driver.check(driver.api().cuTensorMapEncodeTiled(
                   &map, element_of(tensor.dtype), rank, tensor.data, extents.data(), steps_bytes.data(),
                   box.data(), kEveryElement.data(), kNoInterleave, kSwizzle128,
                   tensor.fetch == L2Fetch::Bytes128 ? kPromoteTo128Bytes : kPromoteTo256Bytes, kFillZeros),
               "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace onepass::cuda
