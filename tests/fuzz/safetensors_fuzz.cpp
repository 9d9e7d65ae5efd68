// Any bytes as a .safetensors file: read, or refused with a message. What was read comes back from what is
// written.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "io/safetensors_header.h"
#include "onepass/error.h"
#include "property.h"

namespace {

using onepass::InvalidArgument;
using onepass::fuzz::accepted;
using onepass::fuzz::require;
using namespace onepass::io;

constexpr std::uint64_t kMaxDataBytes = 1 << 16;

/// A whole file around a header that was accepted for this many bytes of data.
std::vector<std::byte> file_around(std::string_view header, std::uint64_t data_bytes) {
  std::vector<std::byte> file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::byte>(header.size() >> (8 * i) & 0xff));
  const auto text = std::as_bytes(std::span(header));
  file.insert(file.end(), text.begin(), text.end());
  for (std::uint64_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<std::byte>(i % 3));
  return file;
}

void check_entries(std::string_view header, std::uint64_t data_bytes) {
  std::vector<SafetensorsEntry> entries;
  const bool valid = accepted<InvalidArgument>([&] {
    entries = parse_safetensors_header(header, data_bytes, {"fuzz", "memory"});
  });
  if (!valid) return;
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    require(entry.begin == covered && entry.end >= entry.begin, "entries follow each other");
    covered = entry.end;
  }
  require(covered == data_bytes, "entries cover the data");
  if (data_bytes > kMaxDataBytes) return;

  const std::vector<std::byte> file = file_around(header, data_bytes);
  std::vector<HostTensor> tensors;
  std::vector<NamedTensor> named;
  for (const SafetensorsEntry& entry : entries) {
    HostTensor tensor;
    if (!accepted<InvalidArgument>([&] { tensor = parse_safetensors(file, entry.name); })) continue;
    require(tensor.num_bytes() <= entry.end - entry.begin, "a tensor is not larger than its entry");
    if (!valid_tensor_name(entry.name)) continue;
    named.push_back({entry.name, tensor.view()});
    tensors.push_back(std::move(tensor));
  }
  MemorySink sink;
  write_safetensors(sink, named);
  for (std::size_t i = 0; i < named.size(); ++i) {
    const HostTensor again = parse_safetensors(sink.bytes(), named[i].name);
    require(again.dtype == tensors[i].dtype && again.shape == tensors[i].shape, "dtype and shape come back");
    require(
        std::equal(again.storage.get(), again.storage.get() + again.num_bytes(), tensors[i].storage.get()),
        "elements come back");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  accepted<InvalidArgument>([&] { parse_safetensors(bytes); });
  // Again with two bytes of data length before the header, so that the search need not keep lengths right.
  if (size < 2) return 0;
  const std::uint64_t data_bytes = data[0] | std::uint64_t{data[1]} << 8;
  check_entries(std::string_view(reinterpret_cast<const char*>(data) + 2, size - 2), data_bytes);
  return 0;
}
