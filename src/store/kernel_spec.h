// A kernel as a value: which text, for which GPU, with which constants. Its name is its identity in logs,
// profilers, the bundle and the disk cache.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "onepass/tensor_view.h"

namespace onepass {

enum class KernelFamily {
  Sm80Forward,
  Sm90Forward,
  Sm90Decode,
  Sm80BackwardKeys,     // dK and dV
  Sm80BackwardQueries,  // dQ
  Sm80BackwardBias,
  BackwardPrepare,
  BackwardSinks,
  FillGradients,
  Sm90BackwardPrepare,  // the three of a backward call, in their order
  Sm90Backward,
  Sm90BackwardFinish,
  MergeSplits,
  FillRows,
  MergeStates,
  AppendKv,
  PartLengths,
  NaiveScores,  // the baseline of tests and benchmarks; no plan has it
  NaiveSoftmax,
  NaiveValues,
};

struct KernelSpec {
  KernelFamily family = KernelFamily::Sm80Forward;
  int architecture = 80;          // compute capability the machine code is for: 80, 86, 89, 90, ...
  DType dtype = DType::BF16;      // of q, k, v and out
  std::optional<DType> kv_dtype;  // of k and v where they have 8 bits
  int head_dim = 0, head_dim_v = 0;
  int tile_m = 0, tile_n = 0;  // packed query rows, keys
  int num_warps = 4;
  int column_groups = 1;     // warps that share rows, each with its columns of out
  int stages = 1;            // K and V buffers in shared memory; of sm90_decode: of either
  int min_blocks = 1;        // thread blocks that an SM must hold: bounds the registers
  int load_bytes = 16;       // widest aligned piece of a q, k or v row: 16, 8, 4 or 2
  int store_bytes = 16;      // of an out row: 16, 4 or 2
  bool paged = false;        // K and V through block_table
  bool score_terms = false;  // softcap, ALiBi, bias, or a scale that is not positive
  bool pack_gqa = false;     // the query heads of a key head are rows of one tile
  bool split = false;        // part of the keys, f32 partial results
  bool parts = false;        // of split: parts of a fixed number of keys (common/key_parts.h)
  // of sm90_forward; masks also of sm90_backward and its companions, whose tile_m is the queries of a step
  bool two_query_stages = false;   // Q buffers in shared memory: two instead of one
  bool two_probabilities = false;  // P in registers twice: the next is packed while a product reads one
  bool mask_end = false;           // causal, or a window to the right: rows end at different keys
  bool mask_begin = false;         // a window to the left: rows begin at different keys
  bool ticket = false;             // blocks draw their tiles, longest first
  bool ragged = false;  // sequences have lengths of their own: work is counted and shared out on the device
  // of sm90_decode; ragged of its blocks that stay
  bool stays = false;         // blocks take tile after tile
  bool cluster = false;       // the eight splits of a tile are a cluster
  bool gather = false;        // of paged: key by key, not in boxes
  bool page_factors = false;  // of paged: pages have factors of their own
  // of sm80_backward_keys
  bool apart = false;  // dK and dV are made by different blocks

  bool operator==(const KernelSpec&) const = default;
};

/// Bytes of an element of k and v.
int kv_bytes(const KernelSpec& spec);

/// e.g. "sm80_forward_bf16_d128_v128_m128n64w4c1s1b2_l16s16_paged_terms_split_sm90".
std::string kernel_name(const KernelSpec& spec);

/// The inverse of kernel_name. @throws InvalidArgument for anything that kernel_name does not write.
KernelSpec parse_kernel_name(std::string_view name);

/// Threads of a block, and dynamic shared memory; the device text asserts both.
int num_threads(const KernelSpec& spec);
std::size_t shared_bytes(const KernelSpec& spec);

}  // namespace onepass
