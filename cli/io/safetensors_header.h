// The JSON header of a .safetensors file, checked as a whole before anything in it is believed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_context.h"

namespace onepass::io {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< "BF16"
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes, counted from the end of the header
};

/// Reads the header of a file with data_bytes bytes after it; entries come in the order of their bytes.
/// Checked, as the format demands: names are unique, each entry has its three keys once, its bytes lie in the
/// file and are as many as dtype and shape need (for every dtype of whole bytes that the format knows), and
/// the entries together cover the data without hole or overlap.
/// @throws InvalidArgument naming what is wrong.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                       const FileContext& context);

}  // namespace onepass::io
