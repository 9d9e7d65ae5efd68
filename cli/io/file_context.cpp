#include "io/file_context.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "support/message.h"

namespace onepass::io {
namespace {

constexpr std::size_t kMaxPathBytes = 4096;

}  // namespace

std::string quote(std::string_view text, std::size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  if (cut) {
    // A UTF-8 character is not split: continuation bytes look like 10xxxxxx.
    std::size_t end = max_bytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
    text = text.substr(0, end);
  }
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace) + (cut ? "..." : "");
}

void FileContext::fail(const std::string& given, const std::string& allowed, const std::string& fix) const {
  throw_invalid(call, fmt::format("{} {}", quote(path, kMaxPathBytes), given), allowed, fix);
}

void FileContext::fail_environment(const std::string& given, const std::string& allowed,
                                   const std::string& fix) const {
  throw EnvironmentError(
      format_message(call, fmt::format("{} {}", quote(path, kMaxPathBytes), given), allowed, fix));
}

}  // namespace onepass::io
