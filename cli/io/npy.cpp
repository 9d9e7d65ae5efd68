#include "io/npy.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "io/npy_header.h"
#include "io/stored_tensor.h"
#include "io/write_elements.h"
#include "support/message.h"

namespace onepass::io {
namespace {

static_assert(std::endian::native == std::endian::little, "both formats are little-endian, and so are we");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;
// numpy itself refuses to evaluate headers beyond 10,000 bytes unless told otherwise.
constexpr std::uint32_t kMaxHeaderBytes = 1 << 20;

const char* npy_descr(DType dtype) {
  switch (dtype) {
    case DType::F32: return "<f4";
    case DType::F16: return "<f2";
    case DType::BF16: return "<V2";
    case DType::F8E4M3:
    case DType::F8E5M2: return "|V1";  // numpy itself cannot load <f1
    case DType::I32: return "<i4";
    case DType::I8: return "|i1";
  }
  return "";
}

StoredType stored_type(const std::string& descr, std::optional<DType> raw_type, const FileContext& context) {
  struct Known {
    std::string_view descr;
    StoredType type;
  };
  static constexpr std::array kPlain = {
      Known{"<f4", StoredType::F32}, Known{"<f2", StoredType::F16}, Known{"<f8", StoredType::F64},
      Known{"<i4", StoredType::I32}, Known{"<i8", StoredType::I64}, Known{"<f1", StoredType::F8E5M2},
      Known{"|i1", StoredType::I8},
  };
  const bool raw2 = descr == "<V2" || descr == "|V2";
  const bool bytes2 = raw2 || descr == "<u2";
  const bool bytes1 = descr == "<V1" || descr == "|V1" || descr == "|u1";
  if (raw_type) {
    if (bytes2 && *raw_type == DType::BF16) return StoredType::BF16;
    if (bytes2 && *raw_type == DType::F16) return StoredType::F16;
    if (bytes1 && *raw_type == DType::F8E4M3) return StoredType::F8E4M3;
    if (bytes1 && *raw_type == DType::F8E5M2) return StoredType::F8E5M2;
  }
  for (const Known& known : kPlain) {
    if (descr == known.descr && (!raw_type || *raw_type == dtype_of(known.type))) return known.type;
  }
  // ml_dtypes saves bfloat16 as <V2 and float8_e5m2 as <f1, but float8_e4m3fn, and others, as <V1.
  if (raw2 && !raw_type) return StoredType::BF16;

  std::string given = fmt::format("holds elements of type {}", quote(descr));
  if (raw_type) given += fmt::format(", to be read as {}", dtype_name(*raw_type));
  std::string fix = "convert the array, for example a.astype('<f4'), and save it again";
  if (descr.starts_with('>')) fix = "convert it to little-endian: a.astype(a.dtype.newbyteorder('<'))";
  if (bytes2) fix = "name the type after the file, x.npy:bf16 or x.npy:f16";
  if (bytes1) fix = "name the type after the file, x.npy:f8e4m3 or x.npy:f8e5m2";
  context.fail(
      given,
      "<f4, <f2, <V2 (bf16), <f1 (f8e5m2), |i1, <i4, and <f8, <i8 (converted); with :bf16 or :f16 also <u2 "
      "and <V2, with :f8e4m3 or :f8e5m2 |u1 and |V1",
      fix);
}

/// The fixed part: magic, version, header length. Returns where the header text begins and its bytes.
struct Preamble {
  std::uint64_t begin;
  std::uint32_t bytes;
};

Preamble read_preamble(const ByteSource& source, const FileContext& context) {
  const std::string allowed = "a .npy file: \\x93NUMPY, version 1.0, 2.0 or 3.0, a header, the elements";
  const std::string fix = "write the file again with numpy.save";
  std::array<unsigned char, 12> start{};
  const std::uint64_t available = std::min<std::uint64_t>(source.size(), start.size());
  source.read(0, std::as_writable_bytes(std::span(start)).first(available));
  if (available < kMagic.size() || std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    context.fail(available == 0 ? "is empty" : "does not begin with \\x93NUMPY", allowed, fix);
  }
  const int major = start[6];
  const int minor = start[7];
  if (available >= 8 && (major < 1 || major > 3 || minor != 0)) {
    context.fail(fmt::format("has format version {}.{}", major, minor), allowed, fix);
  }
  const std::uint64_t begin = major == 1 ? 10 : 12;
  if (available < begin) context.fail(fmt::format("ends after {} bytes", available), allowed, fix);
  std::uint32_t bytes = start[8] | static_cast<std::uint32_t>(start[9]) << 8;
  if (major > 1)
    bytes |= static_cast<std::uint32_t>(start[10]) << 16 | static_cast<std::uint32_t>(start[11]) << 24;
  if (bytes > kMaxHeaderBytes || bytes > source.size() - begin) {
    context.fail(fmt::format("claims a header of {} bytes, but has {} bytes", bytes, source.size()),
                 fmt::format("a header of at most {} bytes that lies in the file", kMaxHeaderBytes), fix);
  }
  return {begin, bytes};
}

}  // namespace

HostTensor read_npy(const ByteSource& source, std::optional<DType> raw_type, const FileContext& context) {
  const Preamble preamble = read_preamble(source, context);
  std::string text(preamble.bytes, '\0');
  source.read(preamble.begin, std::as_writable_bytes(std::span(text)));
  const NpyHeader header = parse_npy_header(text, context);

  StoredTensor stored;
  stored.type = stored_type(header.descr, raw_type, context);
  stored.shape = header.shape;
  stored.column_major = header.fortran_order;
  stored.offset = preamble.begin + preamble.bytes;
  const std::uint64_t held = source.size() - stored.offset;
  const std::optional<std::int64_t> needed = tensor_bytes(stored.shape, stored_bytes(stored.type));
  if (!needed || static_cast<std::uint64_t>(*needed) != held) {
    context.fail(fmt::format("has shape {} of {}, but {} bytes of elements", list_string(stored.shape),
                             quote(header.descr), held),
                 needed ? fmt::format("exactly {} bytes of elements", *needed)
                        : std::string("shapes of less than 2^63 bytes"),
                 "copy the file again, or write it again with numpy.save");
  }
  return load_tensor(source, stored, context);
}

HostTensor parse_npy(std::span<const std::byte> bytes, std::optional<DType> raw_type) {
  return read_npy(MemorySource(bytes), raw_type, {"parse_npy", "memory"});
}

void write_npy(ByteSink& sink, const TensorView& view) {
  const std::span shape(view.shape.data(), static_cast<std::size_t>(view.rank));
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                   npy_descr(view.dtype), joined(shape), view.rank == 1 ? "," : "");
  const std::size_t preamble_bytes = kMagic.size() + 4;
  const std::size_t unpadded = preamble_bytes + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header.push_back('\n');
  std::string start(kMagic);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  start += header;
  sink.write(std::as_bytes(std::span(start)));
  write_elements(sink, view);
}

}  // namespace onepass::io
