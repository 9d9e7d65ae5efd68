#include "onepass/tensor_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "support/message.h"

namespace onepass {
namespace {

using Extents = std::span<const std::int64_t>;

void check_shape(const char* call, Extents shape) {
  if (shape.empty() || shape.size() > static_cast<std::size_t>(TensorView::kMaxRank)) {
    throw_invalid(call, fmt::format("shape has {} dimensions", shape.size()),
                  fmt::format("1 to {} dimensions", TensorView::kMaxRank),
                  shape.empty()
                      ? "pass a default-constructed TensorView for an absent tensor"
                      : "merge or slice dimensions until the tensor has one of the documented layouts");
  }
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      throw_invalid(call, fmt::format("shape {} has a negative extent", list_string(shape)),
                    "extents of 0 or more", "correct the shape");
    }
    // An extent of 0 counts as 1, because the strides of the other dimensions must fit all the same.
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(extent, 1), &elements)) {
      throw_invalid(call, fmt::format("shape {} has more elements than 64 bits count", list_string(shape)),
                    "at most 2^63 - 1 elements", "correct the shape");
    }
  }
}

/// A row-major view; `shape` has passed check_shape.
TensorView row_major(void* data, DType dtype, Extents shape) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    view.strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return view;
}

// Codes of dlpack.h (DLDataTypeCode, DLDeviceType), declared here because nothing else of that header is
// used.
constexpr std::uint8_t kDlInt = 0, kDlFloat = 2, kDlBfloat = 4, kDlFloat8E4M3Fn = 10, kDlFloat8E5M2 = 12;
constexpr std::int32_t kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13;

constexpr const char* kDlpackCall = "from_dlpack";

DType dlpack_dtype(const detail::DlpackFields& f) {
  if (f.lanes == 1) {
    if (f.code == kDlFloat && f.bits == 32) return DType::F32;
    if (f.code == kDlFloat && f.bits == 16) return DType::F16;
    if (f.code == kDlBfloat && f.bits == 16) return DType::BF16;
    if (f.code == kDlFloat8E4M3Fn && f.bits == 8) return DType::F8E4M3;
    if (f.code == kDlFloat8E5M2 && f.bits == 8) return DType::F8E5M2;
    if (f.code == kDlInt && f.bits == 32) return DType::I32;
    if (f.code == kDlInt && f.bits == 8) return DType::I8;
  }
  throw_invalid(kDlpackCall, fmt::format("dtype has code {}, bits {}, lanes {}", f.code, f.bits, f.lanes),
                "f32 (code 2, bits 32), f16 (2, 16), bf16 (4, 16), f8 e4m3fn (10, 8), f8 e5m2 (12, 8), "
                "i32 (0, 32), i8 (0, 8), each with lanes 1",
                "convert the tensor to one of these");
}

DeviceKind dlpack_device(const detail::DlpackFields& f) {
  switch (f.device_type) {
    case kDlCpu:
    case kDlCudaHost: return DeviceKind::Cpu;
    case kDlCuda:
    case kDlCudaManaged: return DeviceKind::Cuda;
    default: break;
  }
  throw_invalid(kDlpackCall, fmt::format("device_type is {}", f.device_type),
                "kDLCPU (1), kDLCUDA (2), kDLCUDAHost (3), kDLCUDAManaged (13)",
                "copy the tensor to the CPU or to a CUDA device");
}

/// data + byte_offset, on an element boundary. A null pointer stays null: a tensor without elements has
/// nothing to point to, and a plan needs no data.
void* dlpack_address(const detail::DlpackFields& f, DType dtype) {
  if (f.data == nullptr) return nullptr;
  const auto base = reinterpret_cast<std::uintptr_t>(f.data);
  const auto bytes = static_cast<std::uintptr_t>(dtype_bytes(dtype));
  std::uintptr_t address = 0;
  if (__builtin_add_overflow(base, f.byte_offset, &address)) {
    throw_invalid(kDlpackCall,
                  fmt::format("byte_offset is {}, past the end of the address space", f.byte_offset),
                  "an offset inside the tensor's memory", "correct byte_offset");
  }
  if (address % bytes != 0) {
    throw_invalid(kDlpackCall,
                  fmt::format("data {:#x} with byte_offset {} is not aligned to {} elements of {} bytes",
                              base, f.byte_offset, dtype_name(dtype), bytes),
                  fmt::format("data + byte_offset is a multiple of {}", bytes),
                  "copy the tensor to aligned memory");
  }
  return reinterpret_cast<void*>(address);
}

}  // namespace

const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::F32: return "f32";
    case DType::F16: return "f16";
    case DType::BF16: return "bf16";
    case DType::F8E4M3: return "f8e4m3";
    case DType::F8E5M2: return "f8e5m2";
    case DType::I32: return "i32";
    case DType::I8: return "i8";
  }
  return "unknown";
}

TensorView make_view(const void* data, DType dtype, std::span<const std::int64_t> shape) {
  check_shape("make_view", shape);
  return row_major(const_cast<void*>(data), dtype, shape);
}

TensorView make_view(const void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return make_view(data, dtype, Extents(shape.begin(), shape.size()));
}

TensorView make_view(const void* data, DType dtype, std::span<const std::int64_t> shape,
                     std::span<const std::int64_t> strides) {
  TensorView view = make_view(data, dtype, shape);
  if (strides.size() != shape.size()) {
    throw_invalid("make_view",
                  fmt::format("strides {} are given for shape {}", list_string(strides), list_string(shape)),
                  "one stride per dimension, in elements",
                  "pass as many strides as extents, or none for a row-major tensor");
  }
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

TensorView transpose(TensorView view, int a, int b) {
  if (std::min(a, b) < 0 || std::max(a, b) >= view.rank) {
    throw_invalid("transpose",
                  fmt::format("dimensions {} and {} are given for shape {}", a, b, shape_string(view)),
                  fmt::format("dimensions 0 to {}", view.rank - 1), "count dimensions from 0, from the left");
  }
  const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
  std::swap(view.shape[i], view.shape[j]);
  std::swap(view.strides[i], view.strides[j]);
  return view;
}

TensorView detail::from_dlpack_fields(const DlpackFields& fields) {
  const DType dtype = dlpack_dtype(fields);
  const DeviceKind device = dlpack_device(fields);
  if (fields.ndim < 1 || fields.ndim > TensorView::kMaxRank || fields.shape == nullptr) {
    throw_invalid(
        kDlpackCall,
        fmt::format("tensor has ndim {}{}", fields.ndim, fields.shape == nullptr ? " and a null shape" : ""),
        fmt::format("ndim 1 to {}, and a shape", TensorView::kMaxRank),
        "pass a tensor in one of the documented layouts");
  }
  const Extents shape(fields.shape, static_cast<std::size_t>(fields.ndim));
  check_shape(kDlpackCall, shape);
  TensorView view = row_major(dlpack_address(fields, dtype), dtype, shape);
  if (fields.strides != nullptr) {
    for (std::size_t i = 0; i < shape.size(); ++i) {
      // A dimension of extent 1 is never stepped over; producers put anything there.
      if (shape[i] != 1) view.strides[i] = fields.strides[i];
    }
  }
  view.device = device;
  if (device == DeviceKind::Cuda) view.device_idx = fields.device_id;  // CPU memory is one place
  return view;
}

}  // namespace onepass
