#include "store/bundle_writer.h"

#include <zstd.h>

#include <algorithm>
#include <tuple>

#include "store/bundle.h"
#include "store/hash.h"
#include "support/message.h"

namespace onepass {
namespace {

constexpr int kCompressionLevel = 19;  // zstd's densest that decompresses in its usual memory

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string compressed(const std::string& image) {
  std::string out(ZSTD_compressBound(image.size()), '\0');
  const std::size_t bytes =
      ZSTD_compress(out.data(), out.size(), image.data(), image.size(), kCompressionLevel);
  if (ZSTD_isError(bytes) != 0) {
    throw EnvironmentError(format_message("write bundle", ZSTD_getErrorName(bytes),
                                          "enough memory to compress a kernel", "free some memory"));
  }
  out.resize(bytes);
  return out;
}

}  // namespace

std::string bundle_bytes(BundleContent content) {
  std::sort(content.images.begin(), content.images.end(), [](const KernelImage& a, const KernelImage& b) {
    return std::tie(a.entry, a.kind) < std::tie(b.entry, b.kind);
  });
  BundleHeader header;
  header.num_entries = static_cast<std::uint32_t>(content.images.size());
  header.sources = content.sources;
  header.compiler_major = static_cast<std::uint32_t>(content.compiler_major);
  header.compiler_minor = static_cast<std::uint32_t>(content.compiler_minor);
  for (const KernelImage& image : content.images) {
    header.index_bytes += sizeof(BundleRecord) + image.entry.size();
  }
  std::string index, images;
  for (const KernelImage& image : content.images) {
    const std::string stored = compressed(image.bytes);
    BundleRecord record;
    record.offset = sizeof header + header.index_bytes + images.size();
    record.hash = hash_of(image.bytes);
    record.stored_bytes = static_cast<std::uint32_t>(stored.size());
    record.image_bytes = static_cast<std::uint32_t>(image.bytes.size());
    record.kind = static_cast<std::uint16_t>(image.kind);
    record.registers = static_cast<std::uint16_t>(image.registers);
    record.name_bytes = static_cast<std::uint32_t>(image.entry.size());
    index += bytes_of(record);
    index += image.entry;
    images += stored;
  }
  header.hash = hash_of(index, hash_of(bytes_of(header)));
  return std::string(bytes_of(header)) + index + images;
}

}  // namespace onepass
