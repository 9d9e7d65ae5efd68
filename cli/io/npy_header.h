// The header of a .npy file: a Python dictionary, read without Python.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_context.h"

namespace onepass::io {

struct NpyHeader {
  std::string descr;  ///< "<f4"
  bool fortran_order = false;
  std::vector<std::int64_t> shape;  ///< extents of 0 or more
};

/// Reads {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }: the three keys once each, in any order.
/// @throws InvalidArgument naming what stands where.
NpyHeader parse_npy_header(std::string_view text, const FileContext& context);

}  // namespace onepass::io
