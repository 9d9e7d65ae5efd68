#include "io/stored_tensor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>

#include "support/message.h"

namespace onepass::io {
namespace {

// Large enough to make a system call cheap, small enough for the second-level cache.
constexpr std::size_t kChunkElements = 1 << 14;

bool narrow(double value, float& out) {
  out = static_cast<float>(value);
  return !(std::isinf(out) && std::isfinite(value));
}

bool narrow(std::int64_t value, std::int32_t& out) {
  out = static_cast<std::int32_t>(value);
  return out == value;
}

template <class From, class To>
void load_converted(const ByteSource& source, std::uint64_t offset, std::span<To> out,
                    const FileContext& context) {
  std::array<From, kChunkElements> chunk{};
  for (std::size_t begin = 0; begin < out.size(); begin += kChunkElements) {
    const std::span<From> part(chunk.data(), std::min(kChunkElements, out.size() - begin));
    source.read(offset + begin * sizeof(From), std::as_writable_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (narrow(part[i], out[begin + i])) continue;
      const char* target = std::is_same_v<To, float> ? "f32" : "i32";
      context.fail(fmt::format("holds {} in element {} (in file order), which {} cannot hold", part[i],
                               begin + i, target),
                   fmt::format("{}-bit values within the range of {}, up to {}", 8 * sizeof(From), target,
                               std::numeric_limits<To>::max()),
                   fmt::format("scale or correct the data and store it as {}", target));
    }
  }
}

void set_column_major(HostTensor& tensor) {
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    tensor.strides[i] = stride;
    stride *= std::max<std::int64_t>(tensor.shape[i], 1);
  }
}

HostTensor allocate(DType dtype, const std::vector<std::int64_t>& shape, const FileContext& context) {
  const std::int64_t bytes = tensor_bytes(shape, dtype_bytes(dtype)).value();
  // Linux promises more memory than there is; ask before the kernel ends the process instead.
  const std::int64_t physical = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  try {
    if (bytes > physical) throw std::bad_alloc();
    return allocate_tensor(dtype, shape);
  } catch (const std::bad_alloc&) {
    context.fail_environment(
        fmt::format("holds {} of {}, {} bytes", list_string(shape), dtype_name(dtype), bytes),
        fmt::format("tensors that fit into memory, which has {} bytes here", physical),
        "store a smaller part of the tensor, or use a machine with more memory");
  }
}

}  // namespace

std::optional<std::int64_t> tensor_bytes(const std::vector<std::int64_t>& shape, std::int64_t element_bytes) {
  std::int64_t bytes = element_bytes;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

HostTensor load_tensor(const ByteSource& source, const StoredTensor& stored, const FileContext& context) {
  if (stored.shape.size() > TensorView::kMaxRank) {
    context.fail(fmt::format("has {} dimensions, shape {}", stored.shape.size(), list_string(stored.shape)),
                 fmt::format("at most {} dimensions", TensorView::kMaxRank),
                 "reshape the tensor, for example to [batch, seqlen, heads, head_dim]");
  }
  const std::vector<std::int64_t> shape = stored.shape.empty() ? std::vector<std::int64_t>{1} : stored.shape;
  HostTensor tensor = allocate(dtype_of(stored.type), shape, context);
  if (stored.column_major) set_column_major(tensor);
  const auto count = static_cast<std::size_t>(tensor.num_elements());
  if (stored.type == StoredType::F64) {
    load_converted<double>(source, stored.offset,
                           std::span(reinterpret_cast<float*>(tensor.storage.get()), count), context);
  } else if (stored.type == StoredType::I64) {
    load_converted<std::int64_t>(source, stored.offset,
                                 std::span(reinterpret_cast<std::int32_t*>(tensor.storage.get()), count),
                                 context);
  } else {
    source.read(stored.offset, std::span(tensor.storage.get(), tensor.num_bytes()));
  }
  return tensor;
}

}  // namespace onepass::io
