#include "backends/cuda/host/tensor_map.h"

#include "backends/cuda/kernels/sm90/layout.h"
#include "support/message.h"

namespace onepass::cuda {
namespace {

// Values of the driver's enumerations (cuda.h since CUDA 12.0).
constexpr int kElementF16 = 6, kElementBf16 = 9, kNoInterleave = 0, kSwizzle128 = 3, kPromoteTo256Bytes = 3,
              kFillZeros = 0;

}  // namespace

TiledTensor tiled_tensor(const TensorView& view, DType dtype, const TensorStrides& strides,
                         std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                         int box_rows) {
  // The driver wants a multiple of 16 bytes also where a single element makes the stride meaningless.
  const auto bytes = [](std::int64_t extent, std::int64_t stride) {
    return extent > 1 ? static_cast<std::uint64_t>(2 * stride) : std::uint64_t{16};
  };
  return {.data = view.data,
          .dtype = dtype,
          .extents = {static_cast<std::uint64_t>(head_dim), static_cast<std::uint64_t>(rows),
                      static_cast<std::uint64_t>(heads), static_cast<std::uint64_t>(batch)},
          .steps_bytes = {bytes(rows, strides.row), bytes(heads, strides.head), bytes(batch, strides.batch)},
          .box = {kBlockColumns, static_cast<unsigned>(box_rows), 1, 1}};
}

TensorMap encode_tensor_map(const Driver& driver, const TiledTensor& tensor) {
  if (driver.api().cuTensorMapEncodeTiled == nullptr) {
    throw EnvironmentError(format_message("run", "the NVIDIA driver has no cuTensorMapEncodeTiled",
                                          "a driver of CUDA 12.0 or later on this GPU", "update the driver"));
  }
  const std::array<unsigned, 4> element_steps = {1, 1, 1, 1};
  TensorMap map{};
  driver.check(driver.api().cuTensorMapEncodeTiled(
                   &map, tensor.dtype == DType::F16 ? kElementF16 : kElementBf16, 4, tensor.data,
                   tensor.extents.data(), tensor.steps_bytes.data(), tensor.box.data(), element_steps.data(),
                   kNoInterleave, kSwizzle128, kPromoteTo256Bytes, kFillZeros),
               "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace onepass::cuda
