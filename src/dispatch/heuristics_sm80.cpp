#include "dispatch/heuristics_sm80.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "backends/cuda/kernels/common/key_parts.h"
#include "dispatch/heuristics_mixed.h"

namespace onepass {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Tile {
  int tile_m, tile_n, num_warps, column_groups, min_blocks;
};

/// Tiles by head_dim. Registers bound them: a warp holds 32 rows x 128 or 16 rows x 256 columns of O.
Tile choose_tile(const AttentionProblem& problem, const DeviceInfo& device, std::int64_t rows) {
  const std::int64_t wide = std::max(problem.head_dim, problem.head_dim_v);
  const std::int64_t shared = device.shared_bytes_per_block;
  const bool small_shared = shared < std::int64_t{140} * 1024;  // sm_86 and sm_89 have 99 KiB
  const bool large_shared = shared > std::int64_t{200} * 1024;  // room for two blocks of head_dim 256 an SM
  const bool terms = problem.has_score_terms();  // they need registers of their own, as pages do
  const bool paged = problem.k_layout == SequenceLayout::Paged;
  if ((rows <= 64 || terms) && wide <= 128) return {64, 64, 4, 1, 2};
  if (wide <= 64) return {128, 128, 4, 1, 2};
  if (wide <= 128) return paged && !large_shared ? Tile{64, 64, 4, 1, 2} : Tile{128, 64, 4, 1, 2};
  if (wide <= 256) {
    if (small_shared || terms) return {64, 32, 4, 1, small_shared ? 1 : 2};
    return large_shared ? Tile{64, 64, 4, 1, 2} : Tile{128, 64, 8, 1, 1};
  }
  if (problem.head_dim_v <= 256) return {32, small_shared ? 16 : 32, 2, 1, 1};
  return small_shared ? Tile{16, 32, 2, 2, 1} : Tile{32, 32, 4, 2, 1};
}

/// Parts of the keys that fill the GPU: as many as leave each block a few key tiles.
int choose_splits(std::int64_t blocks, std::int64_t resident, std::int64_t key_tiles) {
  constexpr std::int64_t kTilesPerSplit = 4;
  if (blocks == 0 || blocks * 4 >= resident * 3) return 1;
  const std::int64_t most = std::max<std::int64_t>(1, key_tiles / kTilesPerSplit);
  return static_cast<int>(std::clamp<std::int64_t>(resident / blocks, 1, std::min<std::int64_t>(most, 128)));
}

}  // namespace

int row_alignment(const TensorStrides& strides, int widest) {
  int bytes = widest;
  for (const std::int64_t stride : {strides.batch, strides.row, strides.head}) {
    while (stride * 2 % bytes != 0) bytes /= 2;
  }
  return bytes;
}

bool has_unowned_rows(const AttentionProblem& problem) {
  return problem.has_seqused_q || problem.q_layout == SequenceLayout::Packed;
}

std::optional<std::string> decline_stored_types(const AttentionProblem& p) {
  if (p.kv_dtype != p.q_dtype)
    return fmt::format("takes k and v in q's dtype, and they are {}", dtype_name(p.kv_dtype));
  if (p.has_k_descale || p.has_v_descale) return "takes no descale factors";
  return std::nullopt;
}

std::optional<std::string> decline_sm80_forward(const AttentionProblem& p, const DeviceInfo& device,
                                                int requested_splits) {
  if (device.kind != DeviceInfo::Kind::Cuda) return "runs on an NVIDIA GPU, and the device is a CPU";
  if (device.compute_capability < 80) {
    return fmt::format("needs compute capability 8.0, and {} has {}.{}", device.name,
                       device.compute_capability / 10, device.compute_capability % 10);
  }
  if (p.q_dtype == DType::F32) return "takes f16 and bf16, and q is f32";
  if (auto reason = decline_stored_types(p)) return reason;
  if (p.head_dim > 576 || p.head_dim_v > 512) {
    return fmt::format("takes head_dim up to 576 and head_dim_v up to 512, and they are {} and {}",
                       p.head_dim, p.head_dim_v);
  }
  for (const auto& [name, strides] : {std::pair{"q", p.q}, {"k", p.k}, {"v", p.v}, {"out", p.out}}) {
    if (strides.dim != 1)
      return fmt::format("needs stride 1 in the last dimension, and {} has {}", name, strides.dim);
  }
  const std::int64_t rows = p.seqlen_q * p.group();
  if (std::max({rows, p.seqlen_k, p.total_q, p.total_k}) > kMaxInt - 1024) return "counts rows in 31 bits";
  if (choose_sm80_forward(p, device, requested_splits).grid > kMaxInt)
    return "has more work than one grid holds";
  return std::nullopt;
}

Sm80ForwardConfig choose_sm80_forward(const AttentionProblem& p, const DeviceInfo& device,
                                      int requested_splits) {
  Sm80ForwardConfig config;
  const bool parts = p.batch_invariant && p.seqlen_q <= most_few_rows(p, device);
  const Tile probe = choose_tile(p, device, p.seqlen_q);
  const bool pack_gqa = (p.batch_invariant ? parts : p.seqlen_q < probe.tile_m) && p.group() > 1;
  const std::int64_t rows = p.seqlen_q * (pack_gqa ? p.group() : 1);
  const Tile tile = choose_tile(p, device, !p.batch_invariant ? rows : parts ? 1 : kMaxInt);

  KernelSpec& spec = config.forward;
  spec.family = KernelFamily::Sm80Forward;
  spec.architecture = device.compute_capability;
  spec.dtype = p.q_dtype;
  spec.head_dim = static_cast<int>(p.head_dim);
  spec.head_dim_v = static_cast<int>(p.head_dim_v);
  spec.tile_m = tile.tile_m;
  spec.tile_n = tile.tile_n;
  spec.num_warps = tile.num_warps;
  spec.column_groups = tile.column_groups;
  spec.min_blocks = tile.min_blocks;
  spec.load_bytes = std::min({row_alignment(p.q, 16), row_alignment(p.k, 16), row_alignment(p.v, 16)});
  spec.store_bytes = row_alignment(p.out, 16);
  while (p.head_dim_v * 2 % spec.store_bytes != 0) spec.store_bytes /= 2;
  if (spec.store_bytes == 8) spec.store_bytes = 4;
  spec.pack_gqa = pack_gqa;
  spec.paged = p.k_layout == SequenceLayout::Paged;
  spec.score_terms = p.has_score_terms();

  const std::int64_t heads = pack_gqa ? p.num_heads_k : p.num_heads_q;
  const std::int64_t blocks = ceil_div(rows, tile.tile_m) * heads * p.batch;
  const std::int64_t resident = std::int64_t{device.num_processors} * tile.min_blocks;
  if (p.batch_invariant) {
    config.num_splits = parts ? static_cast<int>(num_key_parts(p.seqlen_k)) : 1;
  } else if (requested_splits > 0) {
    config.num_splits = requested_splits;
  } else {
    config.num_splits = choose_splits(blocks, resident, ceil_div(p.seqlen_k, tile.tile_n));
  }
  spec.parts = parts;
  spec.split = parts || config.num_splits > 1;
  config.grid = blocks * config.num_splits;
  return config;
}

}  // namespace onepass
