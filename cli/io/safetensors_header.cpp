#include "io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "io/stored_tensor.h"
#include "support/message.h"

namespace onepass::io {
namespace {

// No library stores more dimensions (numpy and PyTorch stop at 64); the limit keeps a hostile header from
// growing the list without end.
constexpr std::size_t kMaxExtents = 64;

constexpr const char* kAllowedHeader =
    "a JSON object of {\"name\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]}} and, "
    "optionally, "
    "\"__metadata__\" with strings";
constexpr const char* kFix = "write the file again with the safetensors library";

enum class Field : std::uint8_t { Dtype, Shape, DataOffsets };
constexpr std::array<std::string_view, 3> kFieldNames = {"dtype", "shape", "data_offsets"};

/// Takes nlohmann-json's events instead of a tree: duplicate keys stay visible, nesting deeper than the
/// format has is refused at once, and memory stays proportional to the table.
class HeaderEvents {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit HeaderEvents(const FileContext& context) : context_(context) {}

  std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }

  bool null() { unexpected("null"); }
  bool boolean(bool) { unexpected("a boolean"); }
  bool number_integer(number_integer_t value) { unexpected(fmt::format("the negative number {}", value)); }
  bool number_float(number_float_t, const string_t& text) {
    unexpected(fmt::format("the number {}, which is not a whole number below 2^64,", quote(text)));
  }
  bool binary(binary_t&) { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    if (place_ != Place::Array) unexpected(fmt::format("the number {}", value));
    if (field_ == Field::Shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        unexpected(fmt::format("the extent {}", value));
      }
      if (entry_.shape.size() == kMaxExtents) unexpected(fmt::format("more than {} extents", kMaxExtents));
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else {
      if (num_offsets_ == 2) unexpected("a third offset");
      (num_offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++num_offsets_;
    }
    return true;
  }

  bool string(string_t& value) {
    if (place_ == Place::Metadata) return true;
    if (place_ != Place::Entry || field_ != Field::Dtype)
      unexpected(fmt::format("the string {}", quote(value)));
    entry_.dtype = std::move(value);
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == Place::Outside) {
      place_ = Place::Top;
    } else if (place_ == Place::Top) {
      place_ = entry_.name == "__metadata__" ? Place::Metadata : Place::Entry;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(string_t& key) {
    if (place_ == Place::Top) {
      if (!names_.insert(key).second) fail(fmt::format("names {} twice", quote(key)));
      entry_ = {};
      entry_.name = std::move(key);
      seen_ = {};
      num_offsets_ = 0;
    } else if (place_ == Place::Entry) {
      const auto* const found = std::find(kFieldNames.begin(), kFieldNames.end(), key);
      if (found == kFieldNames.end()) fail(fmt::format("gives {} the unknown key {}", tensor(), quote(key)));
      const auto idx = static_cast<std::size_t>(found - kFieldNames.begin());
      if (std::exchange(seen_[idx], true)) fail(fmt::format("gives {} {} twice", tensor(), quote(key)));
      field_ = static_cast<Field>(idx);
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::Entry) {
      for (std::size_t i = 0; i < seen_.size(); ++i) {
        if (!seen_[i]) fail(fmt::format("gives {} no {}", tensor(), quote(kFieldNames[i])));
      }
      entries_.push_back(std::move(entry_));
    }
    place_ = place_ == Place::Top ? Place::Outside : Place::Top;
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::Entry || field_ == Field::Dtype) unexpected("a list");
    place_ = Place::Array;
    return true;
  }

  bool end_array() {
    if (field_ == Field::DataOffsets && num_offsets_ != 2) {
      fail(fmt::format("gives {} {} data_offsets", tensor(), num_offsets_));
    }
    place_ = Place::Entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    fail(fmt::format("is not JSON (at byte {})", position));
  }

 private:
  enum class Place : std::uint8_t { Outside, Top, Metadata, Entry, Array };

  std::string tensor() const { return "tensor " + quote(entry_.name); }

  [[noreturn]] void fail(const std::string& what) const {
    context_.fail("has a damaged header, which " + what, kAllowedHeader, kFix);
  }

  [[noreturn]] void unexpected(const std::string& value) const {
    switch (place_) {
      case Place::Outside: fail(fmt::format("is {}", value));
      case Place::Top: fail(fmt::format("has {} where {} should be described", value, tensor()));
      case Place::Metadata: fail(fmt::format("has {} in \"__metadata__\"", value));
      case Place::Entry:
      case Place::Array:
        fail(fmt::format("has {} in {} of {}", value, quote(kFieldNames[static_cast<std::size_t>(field_)]),
                         tensor()));
    }
    fail("is damaged");
  }

  const FileContext& context_;
  Place place_ = Place::Outside;
  Field field_ = Field::Dtype;
  SafetensorsEntry entry_;
  std::array<bool, kFieldNames.size()> seen_{};
  int num_offsets_ = 0;
  std::unordered_set<std::string> names_;
  std::vector<SafetensorsEntry> entries_;
};

/// Bytes of an element; nothing for dtypes that are unknown or smaller than a byte.
std::optional<std::int64_t> element_bytes(std::string_view dtype) {
  struct Known {
    std::string_view dtype;
    std::int64_t bytes;
  };
  static constexpr std::array kKnown = {
      Known{"BOOL", 1},    Known{"U8", 1},      Known{"I8", 1},  Known{"F8_E4M3", 1},
      Known{"F8_E5M2", 1}, Known{"F8_E8M0", 1}, Known{"U16", 2}, Known{"I16", 2},
      Known{"F16", 2},     Known{"BF16", 2},    Known{"U32", 4}, Known{"I32", 4},
      Known{"F32", 4},     Known{"U64", 8},     Known{"I64", 8}, Known{"F64", 8},
  };
  for (const Known& known : kKnown) {
    if (dtype == known.dtype) return known.bytes;
  }
  return std::nullopt;
}

void check_size(const SafetensorsEntry& entry, std::uint64_t data_bytes, const FileContext& context) {
  const std::string tensor = "has tensor " + quote(entry.name);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    context.fail(fmt::format("{} at data_offsets [{}, {}], but {} bytes of data", tensor, entry.begin,
                             entry.end, data_bytes),
                 "begin <= end <= bytes of data", "copy the file again: it may be cut short");
  }
  const std::optional<std::int64_t> element = element_bytes(entry.dtype);
  if (!element) return;
  const std::optional<std::int64_t> needed = tensor_bytes(entry.shape, *element);
  if (!needed || static_cast<std::uint64_t>(*needed) != entry.end - entry.begin) {
    context.fail(fmt::format("{} with shape {} of {} in {} bytes", tensor, list_string(entry.shape),
                             entry.dtype, entry.end - entry.begin),
                 needed ? fmt::format("exactly {} bytes for this shape", *needed)
                        : std::string("shapes of less than 2^63 bytes"),
                 kFix);
  }
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                       const FileContext& context) {
  // Excludes a byte order mark, which the parser below would skip.
  if (!text.starts_with('{')) context.fail("has a header that does not begin with {", kAllowedHeader, kFix);
  HeaderEvents events(context);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  std::vector<SafetensorsEntry> entries = events.take_entries();
  for (const SafetensorsEntry& entry : entries) check_size(entry, data_bytes, context);

  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const std::string allowed = "tensors that cover the data without holes and overlaps";
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != covered) {
      context.fail(
          fmt::format("has tensor {} at byte {} of the data, but the tensors before it end at byte {}",
                      quote(entry.name), entry.begin, covered),
          allowed, kFix);
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    context.fail(fmt::format("has {} bytes of data, but its tensors end at byte {}", data_bytes, covered),
                 allowed, kFix);
  }
  return entries;
}

}  // namespace onepass::io
