#include "support/message.h"

#include <fmt/format.h>

#include <vector>

namespace onepass {

std::string format_message(const std::string& call, const std::string& given, const std::string& allowed,
                           const std::string& fix) {
  return fmt::format("{}: {}.\n  Allowed: {}.\n  Fix: {}.", call, given, allowed, fix);
}

void throw_invalid(const std::string& call, const std::string& given, const std::string& allowed,
                   const std::string& fix) {
  throw InvalidArgument(format_message(call, given, allowed, fix));
}

std::string joined(std::span<const std::string> words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (&word != words.data()) text += separator;
    text += word;
  }
  return text;
}

std::string joined(std::span<const std::int64_t> numbers) {
  std::vector<std::string> words;
  for (const std::int64_t number : numbers) words.push_back(std::to_string(number));
  return joined(words);
}

std::string list_string(std::span<const std::int64_t> numbers) {
  return fmt::format("[{}]", joined(numbers));
}

std::string shape_string(const TensorView& view) {
  return list_string(std::span(view.shape).first(static_cast<std::size_t>(view.rank)));
}

std::string strides_string(const TensorView& view) {
  return list_string(std::span(view.strides).first(static_cast<std::size_t>(view.rank)));
}

}  // namespace onepass
