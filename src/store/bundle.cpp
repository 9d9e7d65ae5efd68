#include "store/bundle.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>
#include <utility>

#include "store/hash.h"
#include "store/source_writer.h"
#include "support/config.h"
#include "support/shared_object.h"

namespace onepass {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little,
              "the bundle is written and read as it is in memory");
static_assert(sizeof(BundleHeader) == 48 && sizeof(BundleRecord) == 32);

constexpr const char* kFileName = "onepass_kernels.bundle";
// Far beyond any kernel and any index: a size past it is damage, and no memory is asked for.
constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

/// `bytes` of the file from `offset`, or nothing when it has fewer.
std::optional<std::string> read_range(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  if (offset > (std::uint64_t{1} << 62) || bytes > kMostBytes) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!file) return std::nullopt;
  return text;
}

Bundle find_shipped() {
  if (const std::string& path = config().bundle_path; !path.empty())
    return Bundle::open(path, sources_hash());
  const fs::path folder = fs::path(this_binary()).parent_path();
  // <prefix>/bin and <prefix>/lib; <prefix>/lib/<multiarch>; a folder that holds everything
  const std::array places = {folder.parent_path() / "share" / "onepass",
                             folder.parent_path().parent_path() / "share" / "onepass", folder};
  for (const fs::path& place : places) {
    std::error_code error;
    if (fs::exists(place / kFileName, error)) {
      return Bundle::open((place / kFileName).string(), sources_hash());
    }
  }
  return Bundle::none(fmt::format("no {} in {}", kFileName, places.front().string()));
}

/// One entry from the front of the index; nothing when it makes no sense.
std::optional<Bundle::Entry> take_entry(std::string_view& index) {
  BundleRecord record;
  if (index.size() < sizeof record) return std::nullopt;
  std::memcpy(&record, index.data(), sizeof record);
  index.remove_prefix(sizeof record);
  if (record.name_bytes > index.size() || record.kind > static_cast<std::uint16_t>(ImageKind::Ptx) ||
      record.image_bytes > kMostBytes) {
    return std::nullopt;
  }
  Bundle::Entry entry{std::string(index.substr(0, record.name_bytes)),
                      static_cast<ImageKind>(record.kind),
                      record.offset,
                      record.hash,
                      record.stored_bytes,
                      record.image_bytes,
                      record.registers};
  index.remove_prefix(record.name_bytes);
  return entry;
}

auto order_of(const Bundle::Entry& entry) { return std::tuple(std::string_view(entry.name), entry.kind); }

}  // namespace

Bundle Bundle::none(std::string why) {
  Bundle bundle;
  bundle.problem_ = std::move(why);
  return bundle;
}

Bundle Bundle::open(const std::string& path, std::uint64_t expected_sources) {
  Bundle bundle;
  bundle.path_ = path;
  const auto fail = [&](const char* why) {
    bundle.entries_.clear();
    bundle.problem_ = why;
    return bundle;
  };
  const std::optional<std::string> head = read_range(path, 0, sizeof(BundleHeader));
  if (!head) return fail("it cannot be read, or is cut off");
  BundleHeader header;
  const BundleHeader expected;
  std::memcpy(&header, head->data(), sizeof header);
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0)
    return fail("it is no kernel bundle");
  if (header.format != expected.format) return fail("it has the format of another version");
  const std::optional<std::string> index = read_range(path, sizeof header, header.index_bytes);
  if (!index) return fail("it is cut off");
  const std::uint64_t hash = std::exchange(header.hash, 0);
  const std::string_view header_bytes(reinterpret_cast<const char*>(&header), sizeof header);
  if (hash_of(*index, hash_of(header_bytes)) != hash) return fail("it is damaged");
  if (header.sources != expected_sources)
    return fail("it was made from other kernel sources than this library");
  std::string_view rest = *index;
  bundle.entries_.reserve(std::min<std::size_t>(header.num_entries, rest.size() / sizeof(BundleRecord)));
  for (std::uint32_t i = 0; i < header.num_entries; ++i) {
    std::optional<Entry> entry = take_entry(rest);
    if (!entry) return fail("its index makes no sense");
    bundle.entries_.push_back(std::move(*entry));
  }
  bundle.compiler_ = fmt::format("{}.{}", header.compiler_major, header.compiler_minor);
  return bundle;
}

const Bundle& Bundle::shipped() {
  static const Bundle bundle = find_shipped();
  return bundle;
}

const Bundle::Entry* Bundle::find(std::string_view name, ImageKind kind) const {
  const auto it = std::lower_bound(entries_.begin(), entries_.end(), std::tuple(name, kind),
                                   [](const Entry& entry, const auto& key) { return order_of(entry) < key; });
  return it == entries_.end() || order_of(*it) != std::tuple(name, kind) ? nullptr : &*it;
}

std::optional<std::string> Bundle::read(std::string_view name, ImageKind kind) const {
  const Entry* entry = find(name, kind);
  if (entry == nullptr) return std::nullopt;
  const std::optional<std::string> stored = read_range(path_, entry->offset, entry->stored_bytes);
  if (!stored) return std::nullopt;
  std::string image(entry->image_bytes, '\0');
  const std::size_t bytes = ZSTD_decompress(image.data(), image.size(), stored->data(), stored->size());
  if (ZSTD_isError(bytes) != 0 || bytes != image.size() || hash_of(image) != entry->hash) return std::nullopt;
  return image;
}

std::string describe(const Bundle& bundle) {
  if (bundle.path().empty()) return "none: " + bundle.problem();
  if (!bundle.problem().empty()) return fmt::format("not used: {} ({})", bundle.problem(), bundle.path());
  return fmt::format("{} kernels ({})", bundle.entries().size(), bundle.path());
}

}  // namespace onepass
