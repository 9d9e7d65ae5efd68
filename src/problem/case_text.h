// One attention problem and how its data is made, as a short text: test id, bench id, command line and log.
//
//   bf16_b2_hq32_hk4_sq512_sk512_d128_causal
//
// A dtype (f32, f16, bf16), then tokens joined by '_', each at most once, in any order:
//   b<N> hq<N> sq<N> d<N>            required: sequences, query heads, query rows, head dim of Q and K
//   hk<N> sk<N> dv<N>                key heads (default hq), key rows (sq), head dim of V and O (d)
//   causal | causaltl                bottom-right or top-left
//   wl<N> wr<N>                      window: keys to the left and right of a row's own position
//   scale<X> softcap<X>              default 1/sqrt(d), and none
//   alibi | alibib                   slopes [Hq] or [B, Hq]
//   bias<b|1><h|1>[f32]              additive bias [B or 1, Hq or 1, Sq, Sk] in the dtype, or in f32;
//                                    "bias" is "biasbh"
//   biasinf                          about a quarter of the bias is -inf, some rows whole
//   sink                             attention sinks [Hq]
//   kvf8e4m3 | kvf8e5m2 | kvi8       K and V in an 8-bit type; with factors, i8 counts 32nds
//   descale1 | descaleh | descalebh  descale factors of K and V: [1], [Hk], [B, Hk]
//   descalep | descaleph             of 8-bit pages: [pages, 1, 1], [pages, 1, Hk]
//   packed | packedq | packedk       packed with cu_seqlens: both sides, queries only, keys only
//   page<N>                          paged K/V in pages of N slots, in random order; garbage in the table
//                                    past the end
//   ragged                           random lengths up to sq and sk: cu_seqlens of packed sides, else seqused
//   gap                              packed sides have unused rows before, between and after their
//                                    sequences (seqused)
//   maxlen                           sq and sk are handed over as max_seqlen_q/k instead of read from
//                                    the lengths
//   bhsd | qkvpacked | dimstride2 | broadcastk | broadcastb | reversed    memory order, see MemoryOrder
//   mean<X> meanv<X> seed<N>         random inputs are normal with deviation 1: mean of Q and K and mean of
//                                    V (default 0.5 both), seed (default 0)
//   split<N>                         parts that the keys are split into (default 0: the planner chooses)
//   invariant                        the bits of a row follow from its own sequence (batch_invariant)
//   bwd                              a backward call: gradients of everything that has one
//   dlse                             of a backward call, which has a gradient of the LSE, too
//   doutone | doutother              dO is one number 1, expanded; or lies in another order than O
//   nolse | nopoison                 no LSE output; memory that must not be read holds 0 instead of NaN
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "onepass/attention.h"

namespace onepass {

/// How the tensors of a case lie in memory. Output and LSE follow in the variants marked (o).
enum class MemoryOrder : std::uint8_t {
  RowMajor,  ///< as the shapes say, last dimension fastest
  Bhsd,      ///< heads outside rows: [B, H, S, D], [H, T, D], [pages, H, slots, D] (o)
  /// Q, K, V are slices of the rows of one buffer; K and V only if paged (halves of a page) or 8 bits wide
  QkvPacked,
  DimStride2,  ///< every second element (o)
  BroadcastK,  ///< all key heads are one: stride 0
  BroadcastB,  ///< all sequences have the same K and V: batch stride 0 (dense keys only)
  Reversed,    ///< row stride is negative (o)
};

/// The shape of a per-head f32 tensor: absent, [1], [H], [B, H], [pages, 1, 1], [pages, 1, H].
enum class PerHead : std::uint8_t { None, One, Heads, BatchHeads, Pages, PageHeads };

/// How dO of a backward case lies in memory.
enum class DoutOrder : std::uint8_t {
  AsOut,
  One,    ///< one element, a 1, expanded: every stride is 0
  Other,  ///< heads outside rows where O has them inside, and the other way round
};

/// The values of a case; the grammar above says what each means. Equal values give equal data on
/// every machine.
struct Case {
  // Limits keep every product of a caller in 64 bits; whether a problem is valid is validate.cpp's business.
  static constexpr std::int64_t kMaxBatch = std::int64_t{1} << 20;
  static constexpr std::int64_t kMaxHeads = std::int64_t{1} << 14;
  static constexpr std::int64_t kMaxSeqlen = std::int64_t{1} << 30;
  static constexpr std::int64_t kMaxHeadDim = 4096;
  static constexpr std::int64_t kMaxPageSize = std::int64_t{1} << 16;
  static constexpr std::int64_t kMaxSplits = 1024;
  static constexpr std::int64_t kMaxElements = std::int64_t{1} << 44;  ///< of Q, K, V, O and the bias, each
  /// b * sq and b * sk where i32 counts them
  static constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;

  DType dtype = DType::F32;
  DType kv_dtype = DType::F32;
  std::int64_t batch = 1;
  std::int64_t num_heads_q = 1, num_heads_k = 1;
  std::int64_t seqlen_q = 1, seqlen_k = 1;
  std::int64_t head_dim = 1, head_dim_v = 1;

  Causal causal = Causal::None;
  std::int64_t window_left = -1, window_right = -1;
  std::optional<double> softmax_scale;
  double softcap = 0.0;

  PerHead alibi = PerHead::None;  // None, Heads, BatchHeads
  bool has_bias = false, bias_per_batch = false, bias_per_head = false, bias_has_inf = false;
  DType bias_dtype = DType::F32;  // dtype or F32; F32 without a bias
  bool has_sinks = false;
  PerHead descale = PerHead::None;

  bool has_page_factors() const { return descale == PerHead::Pages || descale == PerHead::PageHeads; }

  bool packed_q = false, packed_k = false;
  std::int64_t page_size = 0;  // 0: not paged
  bool ragged = false, gaps = false, gives_max_seqlen = false;
  MemoryOrder order = MemoryOrder::RowMajor;

  double mean = 0.5, mean_v = 0.5;
  std::int64_t seed = 0;
  std::int64_t num_splits = 0;
  bool batch_invariant = false;
  bool backward = false, has_dlse = false;
  DoutOrder dout = DoutOrder::AsOut;
  bool has_lse = true, poison = true;

  bool operator==(const Case&) const = default;
};

/// @throws InvalidArgument for anything outside the grammar and its limits; the message names the token.
Case parse_case(std::string_view text);

/// The canonical text: tokens in the grammar's order, defaults left out. parse_case(to_string(c)) == c for
/// every c that parse_case can return.
std::string to_string(const Case& c);

}  // namespace onepass
