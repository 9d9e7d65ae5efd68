#include "store/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace onepass {

std::uint64_t hash_of(std::string_view text, std::uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

}  // namespace onepass
