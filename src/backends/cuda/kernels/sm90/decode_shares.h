// decode_shares.h - how blocks that stay share out the keys of a batch. Read by g++ and by NVRTC alike.
//
// Items stand in a row, each with as many units of work as it takes to read: kTileUnits for a tile of keys
// and one for its start. The row is cut into equal shares, and a tile belongs to the share that its first
// unit is in. So shares differ by a tile at most, whatever the lengths are, and depend on nothing but
// these: the same bits from run to run. A share is four units long at least, so each inside an item has a
// tile of it.
#pragma once

#include "common/host_device.h"

namespace onepass::cuda {

constexpr int kTileUnits = 4;

/// Of an item with so many tiles of keys.
ONEPASS_HOST_DEVICE constexpr int item_units(int num_tiles) { return 1 + kTileUnits * num_tiles; }

/// The row of all items, cut.
struct Shares {
  int units, count;

  ONEPASS_HOST_DEVICE constexpr int begin(int share) const {
    return static_cast<int>(static_cast<long long>(units) * share / count);
  }
  /// Which share a unit is in.
  ONEPASS_HOST_DEVICE constexpr int of(int unit) const {
    return static_cast<int>(((unit + 1LL) * count - 1) / units);
  }
};

/// At most `most` shares of work that is there.
ONEPASS_HOST_DEVICE constexpr Shares share_out(int units, int most) {
  const int shares = units / kTileUnits;
  return {units, shares < 1 ? 1 : shares < most ? shares : most};
}

/// What a share has of an item that starts at unit `first`: tiles from begin to end.
struct ItemPart {
  int begin, end;
  int first_share, last_share;  // that have tiles of the item; without tiles, the one that its start is in
};

ONEPASS_HOST_DEVICE constexpr int tiles_before(int unit, int first, int num_tiles) {
  const int tiles = unit - first - 1 <= 0 ? 0 : (unit - first - 1 + kTileUnits - 1) / kTileUnits;
  return tiles < num_tiles ? tiles : num_tiles;
}

ONEPASS_HOST_DEVICE constexpr ItemPart part_of_item(const Shares& shares, int share, int first,
                                                    int num_tiles) {
  ItemPart part{};
  part.begin = tiles_before(shares.begin(share), first, num_tiles);
  part.end = tiles_before(shares.begin(share + 1), first, num_tiles);
  part.first_share = shares.of(num_tiles == 0 ? first : first + 1);
  part.last_share = num_tiles == 0 ? part.first_share : shares.of(first + 1 + kTileUnits * (num_tiles - 1));
  return part;
}

}  // namespace onepass::cuda
