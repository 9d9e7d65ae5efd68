// The C interface's structs, read and written by the rule of growth (onepass.h): each says its size, missing
// fields mean their defaults, unknown ones must be zero. So a later field must mean "as before" when zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace onepass::c {

/// The size that begins `given`. @throws InvalidArgument when given is null, or the size is below `minimum`,
/// no multiple of `alignment`, or so large that it must be uninitialised memory.
std::size_t struct_size(const char* call, const char* name, const void* given, std::size_t minimum,
                        std::size_t alignment);
void check_struct_size(const char* call, const char* name, std::size_t size, std::size_t minimum,
                       std::size_t alignment);

/// @throws InvalidArgument when a byte of [known, size) is not zero.
void check_unknown_tail(const char* call, const char* name, const void* given, std::size_t known,
                        std::size_t size);
/// @throws InvalidArgument when bytes past `size` of `value` differ from `defaults`: they would be lost.
void check_lost_tail(const char* call, const char* name, const void* value, const void* defaults,
                     std::size_t size, std::size_t known);

/// The caller's struct as this library knows it. `minimum` bytes must be there; the rest may have defaults.
template <class T>
T read_struct(const char* call, const char* name, const T* given, const T& defaults, std::size_t minimum) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t size = struct_size(call, name, given, minimum, alignof(T));
  check_unknown_tail(call, name, given, sizeof(T), size);
  T value = defaults;
  std::memcpy(&value, given, std::min(size, sizeof(T)));
  return value;
}

/// Fills the caller's struct of `size` bytes (checked before); its struct_size becomes `size`.
template <class T>
void write_struct(const char* call, const char* name, T* target, std::size_t size, T value,
                  const T& defaults) {
  check_lost_tail(call, name, &value, &defaults, size, sizeof(T));
  value.struct_size = size;
  std::memcpy(target, &value, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<std::byte*>(target) + sizeof(T), 0, size - sizeof(T));
}

}  // namespace onepass::c
