// The one hash of the store: of kernel text, of images, of files.
#pragma once

#include <cstdint>
#include <string_view>

namespace onepass {

/// XXH3, 64 bits. `seed` chains texts: hash_of(b, hash_of(a)).
std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 0);

}  // namespace onepass
