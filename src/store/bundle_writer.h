// Writing the bundle (bundle.h), at build time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/kernel_image.h"

namespace onepass {

struct BundleContent {
  std::uint64_t sources = 0;  // sources_hash()
  int compiler_major = 0, compiler_minor = 0;
  std::vector<KernelImage> images;  // in any order; no two of the same entry and kind
};

/// The bytes of the file. The same content gives the same bytes, whatever the order of the images.
std::string bundle_bytes(BundleContent content);

}  // namespace onepass
