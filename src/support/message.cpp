#include "support/message.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

namespace onepass {

std::string format_message(const std::string& call, const std::string& given, const std::string& allowed,
                           const std::string& fix) {
  return fmt::format("{}: {}.\n  Allowed: {}.\n  Fix: {}.", call, given, allowed, fix);
}

void throw_invalid(const std::string& call, const std::string& given, const std::string& allowed,
                   const std::string& fix) {
  throw InvalidArgument(format_message(call, given, allowed, fix));
}

namespace {
std::string list_string(const std::int64_t* values, int rank) {
  return fmt::format("[{}]", fmt::join(std::span(values, static_cast<std::size_t>(rank)), ", "));
}
}  // namespace

std::string shape_string(const TensorView& view) { return list_string(view.shape.data(), view.rank); }

std::string strides_string(const TensorView& view) { return list_string(view.strides.data(), view.rank); }

}  // namespace onepass
