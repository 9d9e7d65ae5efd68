#include "tests/emulator/tensor_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <vector>

#include "tests/emulator/block.h"

namespace onepass::emulator {
namespace {

constexpr unsigned kBoxColumns = 64;            // 128 bytes, the rows that are swizzled
constexpr std::int64_t kSwizzlePattern = 1024;  // bytes

}  // namespace

std::uint16_t EmulatedTensorMap::at(const std::array<int, 5>& coordinates) const {
  const char* address = static_cast<const char*>(data);
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    if (coordinates[i] < 0 || static_cast<std::uint64_t>(coordinates[i]) >= extents[i]) return 0;
    address += static_cast<std::uint64_t>(coordinates[i]) * (i == 0 ? 2 : steps_bytes[i - 1]);
  }
  std::uint16_t element = 0;
  std::memcpy(&element, address, sizeof element);
  return element;
}

cuda::TensorMap to_tensor_map(const EmulatedTensorMap& map) {
  static_assert(sizeof map <= sizeof(cuda::TensorMap));
  cuda::TensorMap opaque{};
  std::memcpy(&opaque, &map, sizeof map);
  return opaque;
}

EmulatedTensorMap from_tensor_map(const cuda::TensorMap& opaque) {
  EmulatedTensorMap map{};
  std::memcpy(&map, &opaque, sizeof map);
  return map;
}

void issue_tensor_copy(const cuda::TensorMap& opaque, std::int64_t mbarrier, std::int64_t shared_address,
                       const std::array<int, 5>& first) {
  const EmulatedTensorMap map = from_tensor_map(opaque);
  if (map.box[0] != kBoxColumns || map.box[3] != 1 || map.box[4] != 1 || map.box[1] > 256) {
    fault(fmt::format("a copy of a box of {}; the emulator has {} columns of some rows and blocks",
                      fmt::join(map.box, " x "), kBoxColumns));
  }
  if (shared_address % kSwizzlePattern != 0) {
    fault(fmt::format("a swizzled copy to byte {} of shared memory, where the pattern does not begin",
                      shared_address));
  }
  const int bytes = static_cast<int>(2 * kBoxColumns * map.box[1] * map.box[2]);
  issue_bulk_copy(mbarrier, shared_address, bytes, [map, first, shared_address, bytes](char* target) {
    for (int offset = 0; offset < bytes; offset += 2) {
      std::array<int, 5> place = first;
      const int row = offset / 2 / static_cast<int>(kBoxColumns), rows = static_cast<int>(map.box[1]);
      place[0] += offset / 2 % static_cast<int>(kBoxColumns);
      place[1] += row % rows;
      place[2] += row / rows;
      const std::uint16_t element = map.at(place);
      const std::int64_t plain = shared_address + offset, swizzled = plain ^ (plain >> 7 & 7) << 4;
      std::memcpy(target + (swizzled - shared_address), &element, sizeof element);
    }
  });
}

}  // namespace onepass::emulator
