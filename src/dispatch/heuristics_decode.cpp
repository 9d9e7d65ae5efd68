#include "dispatch/heuristics_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/cuda/kernels/common/key_parts.h"
#include "backends/cuda/kernels/sm90/decode_layout.h"
#include "backends/cuda/kernels/sm90/decode_shares.h"
#include "dispatch/accounting.h"
#include "dispatch/heuristics_mixed.h"
#include "dispatch/heuristics_sm80.h"
#include "dispatch/tensor_map_limits.h"
#include "problem/validate.h"

namespace onepass {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMostTiles = 3;   // of a key head; beyond, a kernel with wider tiles reads less
constexpr std::int64_t kManyKeys = 512;  // below, more tiles than one cost more than keys do (a guess)
constexpr int kConsumerWarps = 4;
constexpr int kBlocksOfProcessor = 2;
constexpr int kRingBytes = 96 * 1024;          // two blocks fit
constexpr int kStayingRingBytes = 192 * 1024;  // one does, with the rows that its warps join
// Of blocks that stay, in all: more is read slower, less does not suffice. More of pages, whose copies are
// smaller.
constexpr double kBytesInFlight = 8.4e6, kPagedBytesInFlight = 12.6e6;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Rows of a tile, by registers: for eight rows a thread holds head_dim_v / 4 words of O, head_dim / 8 of Q,
/// and its scores. With 16 of them, gathered keys of 8 bits would spill two to six words.
std::int64_t most_tile_rows(const AttentionProblem& p) {
  const std::int64_t wide = std::max(p.head_dim, p.head_dim_v);
  const bool spills = dtype_bytes(p.kv_dtype) == 1 && !fits_boxes(p);
  return wide <= 64 ? 24 : wide <= 128 && !spills ? 16 : 8;
}

struct RowTiles {
  std::int64_t number;  // of a key head
  std::int64_t rows;    // of each, a multiple of eight
};

/// Equal ones.
RowTiles row_tiles_of(const AttentionProblem& p, std::int64_t rows) {
  const std::int64_t number = ceil_div(rows, most_tile_rows(p));
  return {number, ceil_div(ceil_div(rows, number), 8) * 8};
}

/// How the tiles of query rows become thread blocks.
struct Form {
  bool stays = false, shares = false;
  std::int64_t splits = 1, grid = 0;
  double cost = 0;  // the time of as many tiles of keys, read at full speed one after the other
};

constexpr std::int64_t kMostSplits = 64;

/// Rows of a key head that the kernel is for.
std::int64_t most_rows(const AttentionProblem& p) {
  const bool many_keys = p.batch_invariant || p.seqlen_k >= kManyKeys;  // of any batch
  return most_tile_rows(p) * (many_keys ? kMostTiles : 1);
}

/// Keys of a tile. With 8-bit elements twice as many are as many bytes: blocks that stay take those, whose
/// larger copies are read faster; the others have the smaller tiles of a small problem.
int tile_keys(const AttentionProblem& p, bool stays) {
  const std::int64_t wide = std::max(p.head_dim, p.head_dim_v);
  if (dtype_bytes(p.kv_dtype) == 1) return stays && wide <= 128 ? 256 : 128;
  return wide <= 128 ? 128 : 64;
}

/// What a tile of keys takes to read, in tiles of 16-bit elements of single items, which costs are in.
double tile_cost(const AttentionProblem& p, bool stays) {
  const std::int64_t wide = std::max(p.head_dim, p.head_dim_v);
  return static_cast<double>(tile_keys(p, stays) * dtype_bytes(p.kv_dtype)) / (wide <= 128 ? 256 : 128);
}

/// Blocks that read at full speed.
std::int64_t enough_blocks(const DeviceInfo& device) { return std::max(1, device.num_processors * 53 / 100); }

/// Blocks of one item. A little more than half as many as processors read at full speed, fewer do not, more
/// share it. Each costs a tile of keys more than it reads, for its start and the merge of its part.
Form single_items(const AttentionProblem& p, const DeviceInfo& device, std::int64_t tiles,
                  std::int64_t splits) {
  const std::int64_t key_tiles = ceil_div(p.seqlen_k, tile_keys(p, false));
  const std::int64_t enough = enough_blocks(device);
  const std::int64_t resident = std::int64_t{device.num_processors} * kBlocksOfProcessor;
  const std::int64_t blocks = tiles * splits, whole_waves = blocks / resident, rest = blocks % resident;
  const std::int64_t in_turn = whole_waves * resident + (rest > 0 ? std::max(rest, enough) : 0);
  const double item = static_cast<double>(ceil_div(key_tiles, splits)) * tile_cost(p, false) + 1;
  return {false, false, splits, blocks, static_cast<double>(in_turn) * item};
}

/// Blocks that work side by side on the tiles of rows of a sequence, which divide them: as many as leave few
/// processors without work.
std::int64_t choose_team(std::int64_t tiles_per_sequence, std::int64_t processors) {
  for (std::int64_t team = std::min(tiles_per_sequence, processors); team > 1; --team) {
    if (tiles_per_sequence % team == 0 && processors % team * 25 <= processors) return team;
  }
  return 1;
}

/// Tiles of rows of a sequence.
std::int64_t tiles_of_sequence(const AttentionProblem& p, std::int64_t tiles) {
  return std::max<std::int64_t>(1, tiles / std::max<std::int64_t>(1, p.batch));  // of no sequences, too
}

/// Whether the work of all items is counted in 32 bits.
bool counts_work(const AttentionProblem& p, std::int64_t tiles_per_sequence) {
  const std::int64_t key_tiles = ceil_div(p.seqlen_k, tile_keys(p, true));
  return p.batch * tiles_per_sequence <= kMaxInt / (1 + cuda::kTileUnits * key_tiles);
}

// Blocks that stay, one for a processor, start and merge under the copies of the next item, and less in
// flight at once is read faster, by so much.
constexpr double kGainOfStaying = 1.04;

/// By number; the blocks of all heads of a sequence run side by side.
Form staying_by_number(const AttentionProblem& p, const DeviceInfo& device, std::int64_t tiles,
                       std::int64_t splits) {
  constexpr double kCostOfItem = 0.3;
  const std::int64_t per_sequence = tiles_of_sequence(p, tiles);
  std::int64_t grid = device.num_processors;
  if (per_sequence < grid) grid = grid / per_sequence * per_sequence;
  const auto rounds = static_cast<double>(ceil_div(tiles * splits, grid));
  const std::int64_t key_tiles = ceil_div(p.seqlen_k, tile_keys(p, true));
  const double item = static_cast<double>(ceil_div(key_tiles, splits)) * tile_cost(p, true) + kCostOfItem;
  const double work = static_cast<double>(grid) * rounds * item;
  return {true, false, splits, std::min(grid, tiles * splits), work / kGainOfStaying};
}

/// Each with a share of the keys: whatever the lengths are, blocks end within a tile of each other.
Form staying_by_shares(const AttentionProblem& p, const DeviceInfo& device, std::int64_t tiles) {
  constexpr double kCostOfItem = 1.0 / cuda::kTileUnits, kCostOfBlock = 1;
  const std::int64_t team = choose_team(tiles_of_sequence(p, tiles), device.num_processors);
  const std::int64_t grid = device.num_processors / team * team;
  const double item =
      static_cast<double>(ceil_div(p.seqlen_k, tile_keys(p, true))) * tile_cost(p, true) + kCostOfItem;
  const double work = static_cast<double>(tiles) * item + static_cast<double>(grid) * kCostOfBlock;
  return {true, true, 1, tiles == 0 ? 0 : grid, work / kGainOfStaying};
}

/// Whether the splits of so many tiles can be merged in clusters.
bool fits_clusters(const DeviceInfo& device, std::int64_t tiles) {
  return tiles * cuda::kClusterBlocks <= device.num_processors;
}

/// `best`, or eight splits that a cluster merges where more of them, merged through memory, gain less than
/// that merge costs: on an H200 (2026-11-30) 0.7 us for eight, about 3 for sixteen, in which a block reads as
/// many tiles.
Form prefer_cluster(const AttentionProblem& p, const DeviceInfo& device, std::int64_t tiles,
                    const Form& best) {
  constexpr double kTilesOfEight = 0.7, kTilesOfFurther = 0.3, kMostTilesOfMerge = 3;
  const std::int64_t further = best.splits - cuda::kClusterBlocks;
  if (best.stays || further <= 0 || !fits_clusters(device, tiles)) return best;
  const double merge =
      std::min(kMostTilesOfMerge, kTilesOfEight + kTilesOfFurther * static_cast<double>(further));
  const Form cluster = single_items(p, device, tiles, cuda::kClusterBlocks);
  return cluster.cost <= best.cost + merge * static_cast<double>(enough_blocks(device)) ? cluster : best;
}

/// The form that is done first, by what was measured on an H200 (head_dim 128, 2026-11-29); of nearly equal
/// ones shares, then those with the fewest splits, of these blocks that stay. Blocks that stay go by number
/// where the host knows that all sequences are of one length, which reads 1 to 2 % faster than shares, and by
/// shares where lengths may differ. requested_splits: 0 for any number.
Form choose_form(const AttentionProblem& p, const DeviceInfo& device, std::int64_t tiles,
                 int requested_splits) {
  if (p.batch_invariant) {
    const bool few = p.seqlen_q <= most_few_rows(p, device);
    return single_items(p, device, tiles, few ? num_key_parts(p.seqlen_k) : 1);
  }
  constexpr double kLongRead =
      56e-6;  // seconds of reading at the published speed; below, blocks that stay lose
  const std::int64_t keys = p.k_layout == SequenceLayout::Packed ? p.total_k : p.batch * p.seqlen_k;
  const auto bytes =
      static_cast<double>(keys * p.num_heads_k * (p.head_dim + p.head_dim_v) * dtype_bytes(p.kv_dtype));
  const bool may_stay =
      device.memory_bytes_per_second > 0 && bytes > kLongRead * device.memory_bytes_per_second;
  const bool ragged = is_ragged(p);
  std::vector<Form> forms;
  if (may_stay && ragged && requested_splits == 0 && counts_work(p, tiles_of_sequence(p, tiles))) {
    forms.push_back(staying_by_shares(p, device, tiles));
  }
  const std::int64_t first = requested_splits > 0 ? requested_splits : 1;
  const std::int64_t last =
      requested_splits > 0
          ? requested_splits
          : std::clamp<std::int64_t>(ceil_div(p.seqlen_k, tile_keys(p, false)), 1, kMostSplits);
  for (std::int64_t splits = first; splits <= last; ++splits) {
    if (may_stay && !ragged) forms.push_back(staying_by_number(p, device, tiles, splits));
    forms.push_back(single_items(p, device, tiles, splits));
  }
  const auto cheaper = [](const Form& a, const Form& b) { return a.cost < b.cost; };
  const double best = std::min_element(forms.begin(), forms.end(), cheaper)->cost;
  const Form chosen =
      *std::find_if(forms.begin(), forms.end(), [best](const Form& f) { return f.cost <= 1.03 * best; });
  return requested_splits > 0 ? chosen : prefer_cluster(p, device, tiles, chosen);
}

}  // namespace

std::optional<std::string> decline_sm90_decode(const AttentionProblem& p, const DeviceInfo& device) {
  if (auto reason = decline_hopper(p, device)) return reason;
  const bool eight_bits = p.kv_dtype != p.q_dtype && dtype_bytes(p.kv_dtype) == 1;
  if (!eight_bits) {
    if (auto reason = decline_stored_types(p)) return reason;
  }
  if (p.has_bias) return "takes no bias";
  if (p.head_dim > 256 || p.head_dim_v > 256 || p.head_dim % 16 != 0 || p.head_dim_v % 16 != 0) {
    return fmt::format("takes head_dim and head_dim_v up to 256 in steps of 16, and they are {} and {}",
                       p.head_dim, p.head_dim_v);
  }
  const std::int64_t rows = p.seqlen_q * p.group();
  if (rows > most_rows(p) && !eight_bits) {  // which no other kernel takes
    return fmt::format(
        "is for up to {} query rows of a key head with {} keys, and there are {} ({} heads of {})",
        most_rows(p), p.seqlen_k, rows, p.group(), p.seqlen_q);
  }
  if (auto reason = decline_tensor_maps(p)) return reason;
  const RowExtents extents = key_rows(p);
  if (std::max({p.seqlen_k, p.total_q, extents.batch, extents.rows}) > kMostMappedRows)
    return "counts rows in 30 bits";
  const std::int64_t row_tiles = std::max(kMostTiles, ceil_div(rows, most_tile_rows(p)));
  if (row_tiles > kMaxInt || p.batch * p.num_heads_k > kMaxInt / kMaxSplits / row_tiles)
    return "has more work than one grid holds";
  return std::nullopt;
}

Sm90DecodeConfig choose_sm90_decode(const AttentionProblem& p, const DeviceInfo& device,
                                    int requested_splits) {
  Sm90DecodeConfig config;
  KernelSpec& spec = config.decode;
  spec.family = KernelFamily::Sm90Decode;
  spec.architecture = 90;
  spec.dtype = p.q_dtype;
  if (p.kv_dtype != p.q_dtype) spec.kv_dtype = p.kv_dtype;
  spec.head_dim = static_cast<int>(p.head_dim);
  spec.head_dim_v = static_cast<int>(p.head_dim_v);
  const std::int64_t rows = std::max<std::int64_t>(1, p.seqlen_q * p.group());
  const RowTiles row_tiles = row_tiles_of(p, rows);
  spec.tile_m = static_cast<int>(p.batch_invariant ? most_tile_rows(p) : row_tiles.rows);
  spec.gather = !fits_boxes(p);
  spec.num_warps = kConsumerWarps + cuda::decode_producers(spec.gather);
  spec.pack_gqa = true;
  spec.paged = p.k_layout == SequenceLayout::Paged;
  spec.score_terms = p.has_score_terms();
  spec.page_factors = p.has_page_factors();

  config.tiles = row_tiles.number * p.num_heads_k * p.batch;
  const Form form = choose_form(p, device, config.tiles, requested_splits);
  spec.tile_n = tile_keys(p, form.stays);
  config.num_splits = static_cast<int>(form.splits);
  config.grid = form.grid;
  spec.parts = p.batch_invariant && p.seqlen_q <= most_few_rows(p, device);
  spec.split = form.splits > 1 || spec.parts;
  spec.stays = form.stays;
  spec.ragged = form.shares;
  // No way through memory: 0.7 us of 6.7 (H200, 2026-11-29); with many blocks starting together costs more.
  spec.cluster = form.splits == cuda::kClusterBlocks && !form.stays && !spec.parts &&
                 fits_clusters(device, config.tiles);
  const int slot_bytes =
      cuda::decode_slot_bytes(spec.tile_n, cuda::decode_columns(spec.head_dim, kv_bytes(spec)),
                              cuda::decode_columns(spec.head_dim_v, kv_bytes(spec)));
  if (form.stays) {
    config.order.items = config.tiles * form.splits;
    if (form.shares) {
      const std::int64_t tiles_per_sequence = tiles_of_sequence(p, config.tiles);
      config.order.team = static_cast<int>(choose_team(tiles_per_sequence, device.num_processors));
      config.order.rounds = static_cast<int>(tiles_per_sequence / config.order.team);
      config.order.num_shares = device.num_processors / config.order.team;
    }
    spec.min_blocks = 1;
    spec.stages = kStayingRingBytes / slot_bytes;
    const std::int64_t read_bytes = spec.tile_n * std::max(p.head_dim, p.head_dim_v) * kv_bytes(spec);
    const double slots = (spec.paged ? kPagedBytesInFlight : kBytesInFlight) /
                         static_cast<double>(std::max<std::int64_t>(1, form.grid) * read_bytes);
    config.order.slots_in_flight = std::clamp(static_cast<int>(std::lround(slots)), 2, spec.stages);
  } else {
    spec.min_blocks = kBlocksOfProcessor;
    spec.stages = kRingBytes / slot_bytes;
  }
  return config;
}

DecodeTileRows decode_tile_rows(const AttentionProblem& p) {
  const RowTiles of_one = row_tiles_of(p, p.group());
  return {of_one.number * of_one.rows / p.group(),
          std::max<std::int64_t>(1, of_one.number * most_tile_rows(p) / p.group())};
}

int decode_box_keys(const AttentionProblem& p, const KernelSpec& decode) {
  return decode.paged && !decode.gather ? page_box(p.page_size, decode.tile_n) : decode.tile_n;
}

}  // namespace onepass
