#include "api/c_structs.h"

#include <fmt/format.h>

#include "onepass/version.h"
#include "support/message.h"

namespace onepass::c {
namespace {

constexpr std::size_t kLargestStruct = 4096;  // far above any struct of onepass.h

}  // namespace

void check_struct_size(const char* call, const char* name, std::size_t size, std::size_t minimum,
                       std::size_t alignment) {
  if (size >= minimum && size <= kLargestStruct && size % alignment == 0) return;
  throw_invalid(call, fmt::format("{} has struct_size {}", name, size),
                fmt::format("sizeof the struct: {} or more, a multiple of {}", minimum, alignment),
                fmt::format("initialise {} with its ..._INIT macro", name));
}

std::size_t struct_size(const char* call, const char* name, const void* given, std::size_t minimum,
                        std::size_t alignment) {
  if (given == nullptr) {
    throw_invalid(call, fmt::format("{} is NULL", name), "the address of a struct",
                  fmt::format("pass {}", name));
  }
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  check_struct_size(call, name, size, minimum, alignment);
  return size;
}

void check_unknown_tail(const char* call, const char* name, const void* given, std::size_t known,
                        std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(given);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] == std::byte{0}) continue;
    throw_invalid(
        call,
        fmt::format("{} has struct_size {}, and its byte {} is not zero, but onepass {} knows {} bytes", name,
                    size, i, ONEPASS_VERSION_STRING, known),
        "fields that this library knows; later ones must be zero",
        "load a newer onepass, or leave the newer fields at zero");
  }
}

void check_lost_tail(const char* call, const char* name, const void* value, const void* defaults,
                     std::size_t size, std::size_t known) {
  if (size >= known) return;
  const auto* a = static_cast<const std::byte*>(value);
  const auto* b = static_cast<const std::byte*>(defaults);
  if (std::equal(a + size, a + known, b + size)) return;
  throw_invalid(call, fmt::format("{} has struct_size {}, too few bytes for the value to write", name, size),
                fmt::format("{} bytes for this value", known), "compile against this version's onepass.h");
}

}  // namespace onepass::c
