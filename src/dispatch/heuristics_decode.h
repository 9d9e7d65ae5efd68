// Which decode kernel, and how many parts of the keys, as pure functions of (problem, device).
#pragma once

#include <optional>
#include <string>

#include "onepass/plan.h"
#include "problem/attention_problem.h"
#include "store/kernel_spec.h"

namespace onepass {

/// How blocks that stay take the tiles of query rows: by number, or by shares of their keys
/// (decode_shares.h).
struct Sm90DecodeOrder {
  std::int64_t items = 0;    // tiles of query rows; by number, times splits
  int team = 0, rounds = 0;  // a sequence has team * rounds of them
  int num_shares = 0;        // of the keys: teams of blocks. 0 by number, like the two above
  int slots_in_flight = 0;   // of a block

  bool operator==(const Sm90DecodeOrder&) const = default;
};

struct Sm90DecodeConfig {
  KernelSpec decode;       // of family Sm90Decode
  int num_splits = 1;      // parts of the keys, merged by the same kernel
  std::int64_t tiles = 0;  // of query rows
  Sm90DecodeOrder order;   // of blocks that stay
  std::int64_t grid = 0;

  bool operator==(const Sm90DecodeConfig&) const = default;
};

/// Why the family does not take a problem on a device; empty when it does.
std::optional<std::string> decline_sm90_decode(const AttentionProblem& problem, const DeviceInfo& device);

/// requested_splits: 0 leaves the choice to the heuristic, which may leave splitting to the lengths.
Sm90DecodeConfig choose_sm90_decode(const AttentionProblem& problem, const DeviceInfo& device,
                                    int requested_splits);

/// Query rows of a sequence whose heads fill no more tiles than those of one row do: tiles as narrow as one
/// row's, and as wide as the kernel has them. One at least.
struct DecodeTileRows {
  std::int64_t of_one_query, widest;
};
DecodeTileRows decode_tile_rows(const AttentionProblem& problem);

/// Keys that lie together in the kernel's tiles, as one copy leaves them: all of a tile, or of pages in boxes
/// the most that divide both page and tile.
int decode_box_keys(const AttentionProblem& problem, const KernelSpec& decode);

}  // namespace onepass
