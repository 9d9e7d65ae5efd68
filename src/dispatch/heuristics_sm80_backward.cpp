#include "dispatch/heuristics_sm80_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/kernels/common/shared_row.h"
#include "backends/cuda/kernels/sm80/backward_layout.h"
#include "dispatch/heuristics_sm80.h"

namespace onepass {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Rows that a block owns, rows of a step, and warps of the block.
struct Tile {
  int own, step, num_warps, min_blocks;
};

/// Registers bound them: a thread holds, for each m16 tile of own rows, half the columns of its sums and, for
/// each 8 rows of a step, 4 of S, 4 of dP and with score terms 4 slopes. `sums`: columns of a block's sums.
Tile choose_tile(int sums, bool terms, int widest, bool small_shared) {
  if (sums <= 128) return terms ? Tile{64, 32, 4, 2} : Tile{128, 32, 4, 2};
  if (widest <= 256) return {64, terms ? 16 : 32, 4, widest <= 128 ? 2 : 1};
  return small_shared ? Tile{16, 16, 1, 1} : Tile{32, 16, 2, 1};
}

/// Two buffers for the steps where they fit into shared memory.
int choose_stages(KernelSpec spec, const DeviceInfo& device) {
  spec.stages = 2;
  return static_cast<std::int64_t>(shared_bytes(spec)) <= device.shared_bytes_per_block ? 2 : 1;
}

int padded(std::int64_t head_dim) { return cuda::round_up(static_cast<int>(head_dim), 16); }

}  // namespace

bool copies_dout(const AttentionProblem& p) { return p.gradient->dout.dim != 1; }

std::optional<std::string> decline_sm80_backward(const AttentionProblem& p, const DeviceInfo& device) {
  if (device.kind != DeviceInfo::Kind::Cuda) return "runs on an NVIDIA GPU, and the device is a CPU";
  if (device.compute_capability < 80) {
    return fmt::format("needs compute capability 8.0, and {} has {}.{}", device.name,
                       device.compute_capability / 10, device.compute_capability % 10);
  }
  if (p.q_dtype == DType::F32) return "takes f16 and bf16, and q is f32";
  if (p.head_dim > 576 || p.head_dim_v > 512) {
    return fmt::format("takes head_dim up to 576 and head_dim_v up to 512, and they are {} and {}",
                       p.head_dim, p.head_dim_v);
  }
  const GradientProblem& g = *p.gradient;
  for (const auto& [name, strides] : {std::pair{"q", p.q},
                                      {"k", p.k},
                                      {"v", p.v},
                                      {"out", p.out},
                                      {"dq", g.dq},
                                      {"dk", g.dk},
                                      {"dv", g.dv}}) {
    if (strides.dim != 1)
      return fmt::format("needs stride 1 in the last dimension, and {} has {}", name, strides.dim);
  }
  if (std::max({p.seqlen_q, p.seqlen_k, p.total_q, p.total_k}) > kMaxInt - 1024)
    return "counts rows in 31 bits";
  const Sm80BackwardConfig config = choose_sm80_backward(p, device);
  const std::int64_t rows = (p.seqlen_q + 127) / 128 * 128 * p.num_heads_q * p.batch;
  if (std::max({config.keys_grid, config.queries_grid, config.bias_grid, rows}) > kMaxInt)
    return "has more work than one grid holds";
  return std::nullopt;
}

Sm80BackwardConfig choose_sm80_backward(const AttentionProblem& p, const DeviceInfo& device) {
  const GradientProblem& g = *p.gradient;
  const int d = padded(p.head_dim), dv = padded(p.head_dim_v), widest = std::max(d, dv);
  const bool small_shared = device.shared_bytes_per_block < std::int64_t{140} * 1024;
  const bool terms = p.has_score_terms();

  KernelSpec common;
  common.architecture = device.compute_capability;
  common.dtype = p.q_dtype;
  common.head_dim = static_cast<int>(p.head_dim);
  common.head_dim_v = static_cast<int>(p.head_dim_v);
  common.score_terms = terms;
  common.load_bytes = std::min({row_alignment(p.q, 16), row_alignment(p.k, 16), row_alignment(p.v, 16),
                                copies_dout(p) ? 16 : row_alignment(g.dout, 16)});

  const auto store_bytes = [](std::initializer_list<TensorStrides> rows, bool even) {
    int bytes = even ? 4 : 2;
    for (const TensorStrides& strides : rows) bytes = std::min(bytes, row_alignment(strides, 4));
    return bytes;
  };
  const auto kernel = [&](KernelFamily family, const Tile& tile, bool owns_keys) {
    KernelSpec spec = common;
    spec.family = family;
    spec.tile_m = owns_keys ? tile.step : tile.own;
    spec.tile_n = owns_keys ? tile.own : tile.step;
    spec.num_warps = tile.num_warps;
    spec.min_blocks = tile.min_blocks;
    return spec;
  };

  Sm80BackwardConfig config;
  const bool apart = widest > 128;
  const Tile keys_tile = choose_tile(apart ? widest : d + dv, terms, widest, small_shared);
  config.keys = kernel(KernelFamily::Sm80BackwardKeys, keys_tile, true);
  config.keys.apart = apart;
  config.keys.stages = choose_stages(config.keys, device);
  config.keys.store_bytes = store_bytes({g.dk, g.dv}, p.head_dim % 2 == 0 && p.head_dim_v % 2 == 0);
  config.keys_grid = ceil_div(p.seqlen_k, config.keys.tile_n) *
                     (apart ? cuda::slices(d) + cuda::slices(dv) : 1) * p.num_heads_k * p.batch;

  const Tile queries_tile = choose_tile(std::min(d, cuda::kMostSliceColumns), terms, widest, small_shared);
  config.queries = kernel(KernelFamily::Sm80BackwardQueries, queries_tile, false);
  config.queries.stages = choose_stages(config.queries, device);
  config.queries.store_bytes = store_bytes({g.dq}, p.head_dim % 2 == 0);
  config.queries_grid =
      ceil_div(p.seqlen_q, config.queries.tile_m) * cuda::slices(d) * p.num_heads_q * p.batch;

  if (!g.has_dbias) return config;
  config.bias = kernel(KernelFamily::Sm80BackwardBias, queries_tile, false);
  config.bias.score_terms = true;
  const auto& bias = g.dbias_shape;
  config.bias_grid =
      ceil_div(bias[3], config.bias.tile_n) * ceil_div(bias[2], config.bias.tile_m) * bias[1] * bias[0];
  return config;
}

}  // namespace onepass
