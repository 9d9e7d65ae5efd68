#include "cli/text_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "onepass/error.h"
#include "support/message.h"

namespace onepass::cli {

void print_text(std::string_view text) {
  const std::size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written != text.size() || std::fflush(stdout) != 0) {
    throw EnvironmentError(
        format_message("onepass", fmt::format("stdout cannot be written ({})", std::strerror(errno)),
                       "a stdout that takes all of the output", "send stdout to a place with room"));
  }
}

std::string labelled(std::string_view label, std::string_view value) {
  return fmt::format("{:<18}{}\n", label, value);
}

Table::Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void Table::add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string Table::text() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (i == 0) {
        text += fmt::format("{:<{}}", row[i], widths[i]);
      } else {
        text += fmt::format("  {:>{}}", row[i], widths[i]);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace onepass::cli
