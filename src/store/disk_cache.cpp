#include "store/disk_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "store/hash.h"
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

// A temporary file begins with this; those that a killed process left are removed by clear().
constexpr const char* kTemporaryPrefix = ".writing.";

}  // namespace

std::string cache_key(const KernelSpec& spec, CompilerVersion compiler) {
  std::uint64_t hash = hash_of(write_source(spec), sources_hash());
  for (const std::string& option : compile_options(spec)) hash = hash_of(option, hash);
  hash = hash_of(fmt::format("nvrtc {}.{}", compiler.major, compiler.minor), hash);
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
      fs::path(folder_) / fmt::format("{}{}.{}.{}", kTemporaryPrefix, key, ::getpid(), counter.fetch_add(1));
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

std::vector<DiskCache::Entry> DiskCache::entries() const {
  std::vector<Entry> found;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder_, error)) {
    std::error_code inner;
    const std::uintmax_t bytes = file.file_size(inner);
    if (!inner && file.path().extension() == kSuffix) {
      found.push_back({file.path().stem().string(), static_cast<std::uint64_t>(bytes)});
    }
  }
  std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  return found;
}

int DiskCache::clear() const {
  int removed = 0;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder_, error)) {
    std::error_code inner;
    const bool is_entry = file.path().extension() == kSuffix;
    const bool is_leftover = file.path().filename().string().starts_with(kTemporaryPrefix);
    if ((is_entry || is_leftover) && fs::remove(file.path(), inner) && is_entry) ++removed;
  }
  return removed;
}

}  // namespace onepass
