// How large the largest cases are.
#pragma once

#include <cstdint>

namespace onepass {

/// A sanitizer makes each element ten times slower and finds as much in a few heads or sequences as in many.
constexpr std::int64_t full_or_sanitized(std::int64_t full, std::int64_t sanitized) {
#ifdef ONEPASS_SANITIZED
  return static_cast<void>(full), sanitized;
#else
  return static_cast<void>(sanitized), full;
#endif
}

}  // namespace onepass
