// Text for people: stdout with its failures noticed, aligned tables, numbers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace onepass::cli {

/// Writes to stdout and flushes. @throws EnvironmentError when that fails (a full disk, a closed pipe).
void print_text(std::string_view text);

/// "label           value\n", aligned with Plan::explain.
std::string labelled(std::string_view label, std::string_view value);

/// Rows of cells under a header; columns as wide as their widest cell, numbers to the right. Cells of the
/// first column stand left. Every row has as many cells as the header.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace onepass::cli
