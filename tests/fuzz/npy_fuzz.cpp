// Any bytes as a .npy file: read, or refused with a message. What was read comes back from what is written.
#include <cstring>
#include <optional>
#include <string_view>

#include "io/npy.h"
#include "io/npy_header.h"
#include "onepass/error.h"
#include "property.h"

namespace {

using onepass::DType;
using onepass::InvalidArgument;
using onepass::fuzz::accepted;
using onepass::fuzz::require;
using namespace onepass::io;

void check_array(std::span<const std::byte> bytes, std::optional<DType> raw_type) {
  HostTensor tensor;
  if (!accepted<InvalidArgument>([&] { tensor = parse_npy(bytes, raw_type); })) return;
  require(tensor.num_bytes() <= bytes.size(), "a tensor is not larger than its file");

  MemorySink once;
  write_npy(once, tensor.view());
  const bool is_raw = tensor.dtype == DType::F8E4M3 || tensor.dtype == DType::F8E5M2;
  const HostTensor again = parse_npy(once.bytes(), is_raw ? std::optional(tensor.dtype) : std::nullopt);
  require(again.dtype == tensor.dtype && again.shape == tensor.shape, "dtype and shape come back");
  // Strides may differ (column-major input); what is written shows the elements in one order.
  MemorySink twice;
  write_npy(twice, again.view());
  require(once.bytes() == twice.bytes(), "elements come back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  for (const std::optional<DType> raw_type :
       {std::optional<DType>(), std::optional(DType::BF16), std::optional(DType::F8E4M3)}) {
    check_array(bytes, raw_type);
  }
  // Without the preamble, so that the search need not keep its length right.
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accepted<InvalidArgument>([&] { parse_npy_header(text, {"fuzz", "memory"}); });
  return 0;
}
