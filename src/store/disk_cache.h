// Compiled kernels on disk, shared by processes. Every failure is silent and harmless: a kernel that cannot
// be read is compiled, one that cannot be written is compiled again by the next process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/kernel_spec.h"
#include "store/nvrtc.h"

namespace onepass {

/// Name of the entry: kernel name + "-" + hash of (source, all kernel files, options, compiler version).
std::string cache_key(const KernelSpec& spec, CompilerVersion compiler);

class DiskCache {
 public:
  /// An empty folder disables the cache.
  explicit DiskCache(std::string folder) : folder_(std::move(folder)) {}

  /// The image, or nothing when there is no entry or it is damaged (size or hash differ).
  std::optional<std::string> read(const std::string& key) const;
  /// Writes beside the final place and renames, so that readers see whole entries only. False when it failed.
  bool write(const std::string& key, const std::string& image) const;
  struct Entry {
    std::string key;
    std::uint64_t bytes;  // of the file
  };
  /// Every entry by name, whichever version of onepass wrote it.
  std::vector<Entry> entries() const;
  /// Removes every entry, and what killed processes left; returns how many entries there were.
  int clear() const;

  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

}  // namespace onepass
