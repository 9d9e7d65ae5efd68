// onepass/tensor_view.h - a non-owning description of a tensor: pointer, dtype, shape, strides.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "onepass/version.h"

namespace onepass {

/// Element types. F8* and I8 are accepted for K and V only; I32 for index tensors only.
enum class DType : std::uint8_t { F32, F16, BF16, F8E4M3, F8E5M2, I32, I8 };

/// Bytes of one element.
constexpr std::int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::I32: return 4;
    case DType::F16:
    case DType::BF16: return 2;
    case DType::F8E4M3:
    case DType::F8E5M2:
    case DType::I8: return 1;
  }
  return 0;
}

/// "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i8".
ONEPASS_API const char* dtype_name(DType dtype) noexcept;

/// Where the memory lives.
enum class DeviceKind : std::uint8_t { Cpu, Cuda };

/// A view of memory that somebody else owns. Strides count elements, may be 0 (a broadcast)
/// or negative, and are free in every dimension on the CPU. An empty view (rank 0) means "absent".
/// Inputs are never written, although `data` is not const (as in DLPack).
struct TensorView {
  static constexpr int kMaxRank = 5;

  void* data = nullptr;  ///< address of element [0, 0, ...]
  DType dtype = DType::F32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};
  DeviceKind device = DeviceKind::Cpu;
  int device_idx = 0;

  bool present() const { return rank > 0; }

  /// Number of elements; 0 when any extent is 0.
  std::int64_t num_elements() const {
    std::int64_t n = rank > 0 ? 1 : 0;
    for (int i = 0; i < rank; ++i) n *= shape[static_cast<std::size_t>(i)];
    return n;
  }

  bool operator==(const TensorView&) const = default;
};

/// A row-major view of `shape` (the last dimension has stride 1).
/// @throws InvalidArgument when there is no dimension or more than TensorView::kMaxRank, an extent is
///   negative, or the number of elements overflows 64 bits (zero extents counted as 1).
ONEPASS_API TensorView make_view(const void* data, DType dtype, std::span<const std::int64_t> shape);
ONEPASS_API TensorView make_view(const void* data, DType dtype, std::initializer_list<std::int64_t> shape);

/// The same with explicit strides, in elements, one per dimension.
/// @throws InvalidArgument as above, or when the two lengths differ.
ONEPASS_API TensorView make_view(const void* data, DType dtype, std::span<const std::int64_t> shape,
                                 std::span<const std::int64_t> strides);

/// `view` with dimensions a and b exchanged (no copy). @throws InvalidArgument if out of range.
ONEPASS_API TensorView transpose(TensorView view, int a, int b);

/// Any struct laid out as DLPack's DLTensor (dlpack.h 0.2 to 1.x); include that header yourself.
template <class T>
concept DlpackTensor = requires(const T& t) {
  { t.data } -> std::convertible_to<const void*>;
  { t.shape } -> std::convertible_to<const std::int64_t*>;
  { t.strides } -> std::convertible_to<const std::int64_t*>;
  { t.ndim } -> std::convertible_to<std::int32_t>;
  { t.byte_offset } -> std::convertible_to<std::uint64_t>;
  t.device.device_type;
  t.device.device_id;
  t.dtype.code;
  t.dtype.bits;
  t.dtype.lanes;
};

namespace detail {
struct DlpackFields {
  const void* data;
  std::int32_t device_type, device_id, ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;
  std::uint64_t byte_offset;
};
ONEPASS_API TensorView from_dlpack_fields(const DlpackFields& fields);
}  // namespace detail

/// A view of a DLPack tensor. byte_offset is added to the address, NULL strides mean row-major,
/// strides of size-1 dimensions are ignored (set to the row-major value).
/// Devices: kDLCPU (1), kDLCUDA (2), kDLCUDAHost (3, read as CPU), kDLCUDAManaged (13, read as CUDA).
/// Dtypes: float 32 and 16 (code 2), bfloat 16 (4), float8_e4m3fn (10), float8_e5m2 (12), int 32 and 8 (0).
/// @throws InvalidArgument on another device, dtype, no dimension or more than kMaxRank, a negative extent,
///   an address that is not aligned to the element, or lanes != 1.
template <DlpackTensor T>
TensorView from_dlpack(const T& t) {
  return detail::from_dlpack_fields(
      {t.data, static_cast<std::int32_t>(t.device.device_type), static_cast<std::int32_t>(t.device.device_id),
       t.ndim, static_cast<std::uint8_t>(t.dtype.code), static_cast<std::uint8_t>(t.dtype.bits),
       static_cast<std::uint16_t>(t.dtype.lanes), t.shape, t.strides, t.byte_offset});
}

}  // namespace onepass
