#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "io/safetensors_header.h"
#include "io/stored_tensor.h"
#include "io/write_elements.h"

namespace onepass::io {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
// The limit of the reference implementation.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxListedNames = 12;

struct DtypeName {
  std::string_view name;
  StoredType type;
};
constexpr std::array kDtypeNames = {
    DtypeName{"F32", StoredType::F32},        DtypeName{"F16", StoredType::F16},
    DtypeName{"BF16", StoredType::BF16},      DtypeName{"F8_E4M3", StoredType::F8E4M3},
    DtypeName{"F8_E5M2", StoredType::F8E5M2}, DtypeName{"I32", StoredType::I32},
    DtypeName{"I8", StoredType::I8},          DtypeName{"F64", StoredType::F64},
    DtypeName{"I64", StoredType::I64},
};

std::string_view name_of(DType dtype) {
  // The converted types come last, so the first match is the type that is stored as it is.
  for (const DtypeName& known : kDtypeNames) {
    if (dtype_of(known.type) == dtype) return known.name;
  }
  return "";
}

std::string names_string(const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxListedNames); ++i) {
    text += (i > 0 ? ", " : "") + quote(names[i]);
  }
  if (names.size() > kMaxListedNames) text += fmt::format(" and {} more", names.size() - kMaxListedNames);
  return text;
}

const SafetensorsEntry& find(const std::vector<SafetensorsEntry>& entries, const std::string& name,
                             const FileContext& context) {
  if (name.empty() && entries.size() == 1) return entries.front();
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const SafetensorsEntry& entry) { return entry.name == name; });
  if (!name.empty() && found != entries.end()) return *found;
  if (entries.empty()) context.fail("holds no tensor", "files with at least one tensor", "name another file");
  context.fail(name.empty() ? fmt::format("holds {} tensors, and none is named", entries.size())
                            : fmt::format("holds no tensor {}", quote(name)),
               names_string(entries), "name one of them after the file: x.safetensors:name");
}

}  // namespace

HostTensor read_safetensors(const ByteSource& source, const std::string& name, const FileContext& context) {
  const std::string fix = "name a .safetensors file, or copy this one again: it may be cut short";
  if (source.size() < kLengthBytes) {
    context.fail(fmt::format("has {} bytes", source.size()),
                 "8 bytes of header length, a JSON header, the data", fix);
  }
  std::array<unsigned char, kLengthBytes> start{};
  source.read(0, std::as_writable_bytes(std::span(start)));
  std::uint64_t header_bytes = 0;
  for (std::size_t i = start.size(); i-- > 0;) header_bytes = header_bytes << 8 | start[i];
  if (header_bytes > kMaxHeaderBytes || header_bytes > source.size() - kLengthBytes) {
    context.fail(fmt::format("claims a header of {} bytes, but has {} bytes", header_bytes, source.size()),
                 fmt::format("a header of at most {} bytes that lies in the file", kMaxHeaderBytes), fix);
  }
  std::string text(header_bytes, '\0');
  source.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const std::uint64_t data_begin = kLengthBytes + header_bytes;
  const std::vector<SafetensorsEntry> entries =
      parse_safetensors_header(text, source.size() - data_begin, context);
  const SafetensorsEntry& entry = find(entries, name, context);

  const auto* const known =
      std::find_if(kDtypeNames.begin(), kDtypeNames.end(),
                   [&](const DtypeName& known_name) { return known_name.name == entry.dtype; });
  if (known == kDtypeNames.end()) {
    context.fail(fmt::format("holds tensor {} of dtype {}", quote(entry.name), quote(entry.dtype)),
                 "F32, F16, BF16, F8_E4M3, F8_E5M2, I8, I32, and F64, I64 (converted)",
                 "convert the tensor to one of these and save it again");
  }
  return load_tensor(source, {known->type, entry.shape, false, data_begin + entry.begin}, context);
}

HostTensor parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  return read_safetensors(MemorySource(bytes), name, {"parse_safetensors", "memory"});
}

bool valid_tensor_name(const std::string& name) {
  if (name.empty() || name == "__metadata__") return false;
  using nlohmann::json;
  // What is not UTF-8 can be replaced or left out; both give the same text where there is none.
  const auto text = [&](json::error_handler_t handler) { return json(name).dump(-1, ' ', false, handler); };
  return text(json::error_handler_t::replace) == text(json::error_handler_t::ignore);
}

void write_safetensors(ByteSink& sink, std::vector<NamedTensor> tensors) {
  // Wide elements first, then by name, as the reference implementation does: each tensor is aligned to its
  // element, and the bytes do not depend on the order of the calls.
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return std::pair(-dtype_bytes(a.view.dtype), a.name) < std::pair(-dtype_bytes(b.view.dtype), b.name);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::int64_t begin = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::int64_t end = begin + tensor.view.num_elements() * dtype_bytes(tensor.view.dtype);
    const std::span shape(tensor.view.shape.data(), static_cast<std::size_t>(tensor.view.rank));
    header[tensor.name] = {{"dtype", name_of(tensor.view.dtype)},
                           {"shape", std::vector<std::int64_t>(shape.begin(), shape.end())},
                           {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  std::array<unsigned char, kLengthBytes> length{};
  for (std::size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  sink.write(std::as_bytes(std::span(length)));
  sink.write(std::as_bytes(std::span(text)));
  for (const NamedTensor& tensor : tensors) write_elements(sink, tensor.view);
}

}  // namespace onepass::io
