#include "store/disk_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "store/source_writer.h"

namespace onepass {
namespace {

namespace fs = std::filesystem;

// An entry is this header and the image.
struct Header {
  char magic[8] = {'o', 'n', 'e', 'p', 'a', 's', 's', '1'};
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;
};

constexpr const char* kSuffix = ".cubin";

std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 0) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

/// All kernel text, hashed once: an edit anywhere makes every entry stale.
std::uint64_t sources_hash() {
  static const std::uint64_t hash = [] {
    std::uint64_t h = 0;
    for (const KernelFile& file : kernel_files()) h = hash_of(file.text, hash_of(file.path, h));
    return h;
  }();
  return hash;
}

}  // namespace

std::string cache_key(const KernelSpec& spec, int compiler_major, int compiler_minor) {
  std::uint64_t hash = hash_of(write_source(spec), sources_hash());
  for (const std::string& option : compile_options(spec)) hash = hash_of(option, hash);
  hash = hash_of(fmt::format("nvrtc {}.{}", compiler_major, compiler_minor), hash);
  return fmt::format("{}-{:016x}", kernel_name(spec), hash);
}

std::optional<std::string> DiskCache::read(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream file(fs::path(folder_) / (key + kSuffix), std::ios::binary);
  if (!file) return std::nullopt;
  const std::string entry{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Header header;
  const Header expected;
  if (entry.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, entry.data(), sizeof header);
  const std::string_view image = std::string_view(entry).substr(sizeof header);
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0 || header.bytes != image.size() ||
      header.hash != hash_of(image)) {
    return std::nullopt;
  }
  return std::string(image);
}

bool DiskCache::write(const std::string& key, const std::string& image) const {
  if (folder_.empty()) return false;
  static std::atomic<unsigned> counter{0};
  std::error_code error;
  fs::create_directories(folder_, error);
  const fs::path temporary =
      fs::path(folder_) / fmt::format(".{}.{}.{}", key, ::getpid(), counter.fetch_add(1));
  Header header;
  header.bytes = image.size();
  header.hash = hash_of(image);
  {
    std::ofstream file(temporary, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file.write(image.data(), static_cast<std::streamsize>(image.size()));
    file.close();
    if (!file) {
      fs::remove(temporary, error);
      return false;
    }
  }
  fs::rename(temporary, fs::path(folder_) / (key + kSuffix), error);
  if (!error) return true;
  fs::remove(temporary, error);
  return false;
}

int DiskCache::clear() const {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    std::error_code inner;
    if (entry.path().extension() == kSuffix && fs::remove(entry.path(), inner)) ++removed;
  }
  return removed;
}

}  // namespace onepass
