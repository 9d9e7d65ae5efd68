// What the parts of the SIMD backward agree on. Plain C++; nothing here depends on an instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/simd/kernels.h"

namespace onepass::cpu {

/// Everything about a backward call that all items share.
struct GradientContext {
  /// Of the forward call. For gradients of a bias its problem is that of one head of keys for each of
  /// queries.
  ForwardContext forward;
  const BackwardArguments& args;
  const GradientProblem& gradient;
  std::int64_t group;  // query heads that read one key head
  const float*
      delta;  // dot(dout, out) - dlse, one for each row and head, as ForwardContext::query_row counts
  std::int64_t tile_n;  // keys of a block
};

/// Packed rows of one (sequence, key head) against a range of key blocks. What it makes is whole: dK and dV
/// ask for all rows, dQ for all blocks that its rows see.
struct GradientItem {
  WorkItem rows{};
  bool makes_keys = false, makes_queries = false;
};

/// Rows and keys of the bias: of its [b, h], what all sequences and heads that share it give is added up.
struct BiasItem {
  std::int64_t bias_b, bias_h, row_begin, row_end, n_block;
};

/// Blocks of tile_n keys that a thread holds K, V, dK and dV of at once, so that a tile of rows is packed
/// once for all of them.
std::int64_t blocks_together(const AttentionProblem& problem, std::int64_t tile_n);

/// Per-thread memory. A column panel is 64 columns of rows that follow each other.
struct GradientScratch {
  Scratch tile;        // of 64 rows and all keys held: q and out hold Q^T and dO^T
  float* dp;           // (tile_n, 64): dP^T, then dS^T
  float* slopes;       // (tile_n, 64): derivative of the softcap; null without one
  float* q_panels;     // (panels of head_dim, 64 rows, 64)
  float* dout_panels;  // (panels of head_dim_v, 64 rows, 64)
  float* dk_panels;    // (panels of head_dim, keys held, 64)
  float* dv_panels;    // (panels of head_dim_v, keys held, 64)
  float* dq;           // (sub tiles, head_dim, 64) transposed
  float* lse_log2;     // (64); infinity where P is 0
  float* delta;        // (64)
  float* bias_sum;     // (tile_n, 64); null without dbias

  /// Carves `memory`, or only counts when it is null; dq for num_rows packed rows. Returns the bytes taken.
  std::size_t carve(std::byte* memory, const AttentionProblem& problem, std::int64_t tile_n,
                    std::int64_t num_rows);
};

}  // namespace onepass::cpu
