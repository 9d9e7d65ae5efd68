// What both formats describe in their headers: type, shape and place of one tensor's elements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/byte_source.h"
#include "io/file_context.h"
#include "io/host_tensor.h"

namespace onepass::io {

/// Element types in files. The last two are converted while reading.
enum class StoredType : std::uint8_t { F32, F16, BF16, F8E4M3, F8E5M2, I8, I32, F64, I64 };

/// The type that a stored type is read as.
constexpr DType dtype_of(StoredType type) {
  switch (type) {
    case StoredType::F32:
    case StoredType::F64: return DType::F32;
    case StoredType::F16: return DType::F16;
    case StoredType::BF16: return DType::BF16;
    case StoredType::F8E4M3: return DType::F8E4M3;
    case StoredType::F8E5M2: return DType::F8E5M2;
    case StoredType::I8: return DType::I8;
    case StoredType::I32:
    case StoredType::I64: return DType::I32;
  }
  return DType::F32;
}

constexpr std::int64_t stored_bytes(StoredType type) {
  return type == StoredType::F64 || type == StoredType::I64 ? 8 : dtype_bytes(dtype_of(type));
}

/// Bytes of the elements, or nothing when they (extents of 0 counted as 1, so that strides fit too) reach
/// 2^63. Extents are not negative.
std::optional<std::int64_t> tensor_bytes(const std::vector<std::int64_t>& shape, std::int64_t element_bytes);

struct StoredTensor {
  StoredType type = StoredType::F32;
  std::vector<std::int64_t> shape;
  bool column_major = false;
  std::uint64_t offset = 0;  ///< of the first element in the source
};

/// Copies the elements to memory. The caller has checked that they lie inside the source; the rank is checked
/// here. A scalar becomes shape [1].
/// @throws InvalidArgument, EnvironmentError (see read_tensor).
HostTensor load_tensor(const ByteSource& source, const StoredTensor& stored, const FileContext& context);

}  // namespace onepass::io
