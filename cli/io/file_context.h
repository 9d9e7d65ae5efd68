// What every message about a file has in common.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace onepass::io {

/// `text` in double quotes, as one line of valid UTF-8, cut to max_bytes: fit to stand in a message even if
/// it comes from a hostile file.
std::string quote(std::string_view text, std::size_t max_bytes = 80);

/// Who reads or writes which file.
struct FileContext {
  std::string call;
  std::string path;

  /// "<call>: "<path>" <given>." as InvalidArgument.
  [[noreturn]] void fail(const std::string& given, const std::string& allowed, const std::string& fix) const;
  /// The same as EnvironmentError, for what is not the caller's fault.
  [[noreturn]] void fail_environment(const std::string& given, const std::string& allowed,
                                     const std::string& fix) const;
};

}  // namespace onepass::io
