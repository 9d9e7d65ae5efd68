// The kernels that are shipped beside the library: one file with an index, made at build time without a GPU.
//
//   BundleHeader | index: num_entries x (BundleRecord, name) in the order of (name, kind) | compressed images
//
// The header names the kernel text that the images were compiled from. A bundle of other text is not used at
// all; a damaged index likewise; a damaged image is one kernel that is not there. Nothing here throws.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/kernel_image.h"

namespace onepass {

/// Little endian, like the machines that have these GPUs.
struct BundleHeader {
  char magic[8] = {'o', 'n', 'e', 'p', 'a', 's', 's', 'B'};
  std::uint32_t format = 2;
  std::uint32_t num_entries = 0;
  std::uint64_t sources = 0;      // sources_hash() of the library that wrote it
  std::uint64_t index_bytes = 0;  // images begin after header and index
  std::uint64_t hash = 0;         // of this header, with 0 here, and the index
  std::uint32_t compiler_major = 0, compiler_minor = 0;
};

struct BundleRecord {
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t hash = 0;    // of the image
  std::uint32_t stored_bytes = 0, image_bytes = 0;
  std::uint16_t kind = 0;       // ImageKind
  std::uint16_t registers = 0;  // of a thread; 0: not known, as of PTX
  std::uint32_t name_bytes = 0;
};

class Bundle {
 public:
  struct Entry {
    std::string name;
    ImageKind kind = ImageKind::Cubin;
    std::uint64_t offset = 0, hash = 0;
    std::uint32_t stored_bytes = 0, image_bytes = 0;
    int registers = 0;
  };

  /// No bundle: problem() says `why`.
  static Bundle none(std::string why);
  /// Reads header and index. With any fault there are no entries, and problem() names it.
  static Bundle open(const std::string& path, std::uint64_t expected_sources);
  /// The one of this process: ONEPASS_BUNDLE, or onepass_kernels.bundle beside the library or in
  /// share/onepass of its prefix.
  static const Bundle& shipped();

  /// The index's entry; null when there is none. It lives as long as the bundle.
  const Entry* find(std::string_view name, ImageKind kind) const;
  /// The image, checked; nothing when there is no such entry or it is damaged.
  std::optional<std::string> read(std::string_view name, ImageKind kind) const;

  const std::string& path() const { return path_; }        // empty: none was found
  const std::string& problem() const { return problem_; }  // empty: it is in use
  std::span<const Entry> entries() const { return entries_; }
  /// "13.0"
  const std::string& compiler() const { return compiler_; }

 private:
  std::string path_, problem_, compiler_;
  std::vector<Entry> entries_;  // in the order of (name, kind)
};

/// Whether the bundle is there, and what it holds, in one phrase.
std::string describe(const Bundle& bundle);

}  // namespace onepass
