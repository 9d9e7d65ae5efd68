// onepass/append_kv.h - new keys and values behind those that a cache holds, with rotary embedding if asked.
//
//   #include <onepass/append_kv.h>
//   onepass::AppendArguments args;
//   args.k_new = ...; args.v_new = ...;              // of this step
//   args.k_cache = pool_k; args.v_cache = pool_v;    // written
//   args.block_table = ...; args.cache_seqlens = ...;
//   onepass::append_kv(args);
//
// Rotary embedding turns the pairs of a row's first R elements by the angles of its position (Su et al. 2021,
// arXiv:2104.09864). Symbols as in attention.h; Sn new rows of one sequence, Tn rows of a packed buffer.
#pragma once

#include <cstdint>

#include "onepass/attention.h"

namespace onepass {

/// The tensors of one call. Views marked optional may be absent (rank 0); all are on one device.
///
/// Layouts of the new rows, and of q (chosen independently):
///   dense   k_new [B, Sn, Hk, D], v_new [B, Sn, Hk, Dv];  q, q_out [B, Sq, Hq, D]
///   packed  k_new [Tn, Hk, D],    v_new [Tn, Hk, Dv];     q, q_out [Tq, Hq, D]; with their cu_seqlens
/// Layouts of the cache:
///   contiguous  k_cache [B, capacity, Hk, D], v_cache [B, capacity, Hk, Dv]; with cache_batch_idx
///               [rows, capacity, ...]
///   paged       k_cache [pages, page_size, Hk, D], v_cache [pages, page_size, Hk, Dv]; block_table present;
///               the capacity is max_pages * page_size
///
/// Dtypes: f32, f16 or bf16 (on a GPU f16 or bf16), all equal; k_cache and v_cache may both be f8 or i8
/// instead, and then hold the new rows divided by their factors (append_kv says how). Strides are free on the
/// CPU; on a GPU the last dimension has stride 1.
struct AppendArguments {
  TensorView k_new, v_new;
  TensorView k_cache, v_cache;  ///< written: the new rows, and nothing else

  TensorView
      cu_seqlens_new;        ///< optional, i32 [B+1]: packed new rows; sequence b starts at cu_seqlens_new[b]
  TensorView seqused_new;    ///< optional, i32 [B]: new rows of b in use, from its start
  TensorView cache_seqlens;  ///< optional, i32 [B]: rows of b that the cache holds; new row t becomes row
                             ///< cache_seqlens[b] + t. Absent: 0
  TensorView block_table;    ///< optional, i32 [B, max_pages]: row t is in page block_table[b][t / page_size]
  TensorView cache_batch_idx;  ///< optional, i32 [B]: where b is in a contiguous cache. Absent: b

  /// optional, of a cache with 8 bits, f32 [1], [Hk], [B, Hk] or, of pages, [pages, 1, Hk or 1]: what is
  /// stored times this is K, as in ForwardArguments. Absent: 1
  TensorView k_descale;
  TensorView v_descale;  ///< optional, likewise for V, in a shape of its own

  /// optional, f32 or k_new's dtype, [positions, R / 2]: cosines and sines of pair i at each position. R is
  /// even and at most D. Both or neither.
  TensorView rotary_cos, rotary_sin;
  /// optional, i32 [B]: position of b's first new row, and of its first row of q. Absent: cache_seqlens
  TensorView rotary_positions;
  TensorView q;      ///< optional, needs rotary_cos: rows to be turned, row i of b at first position + i
  TensorView q_out;  ///< written, of q's shape; may be q
  TensorView cu_seqlens_q;  ///< optional, i32 [B+1]: packed q

  /// optional, i32 [B], written: rows that the cache holds afterwards, the seqused_k of the attention that
  /// follows
  TensorView seqlens_out;
  /// optional, i32 [B], for GPUs: set to 1 where sequence b did not fit; never cleared. Absent: the next call
  /// on this GPU reports it (InvalidArgument)
  TensorView overflow;
};

/// The values of one call.
struct AppendOptions {
  /// Pair i is elements 2 i and 2 i + 1, or else i and i + R / 2 (half-split).
  bool rotary_interleaved = false;
  /// Every row of q stands at its sequence's first position, instead of one after the other.
  bool q_at_first_position = false;
  int num_threads = 0;  ///< CPU, as in ForwardOptions
};

/// Writes each sequence's new rows behind its cached ones, turned if rotary tables are given (keys and q, not
/// values). No workspace, no allocation; lengths are read where they are, so a GPU call can be captured in a
/// graph and replayed for other lengths. On a GPU the work is queued on `stream` when the call returns.
///
/// An element of a cache with 8 bits is the new one over its factor in f32 (keys after they turn, without
/// another rounding between), rounded to the nearest value, ties to even; what is past the largest finite
/// value becomes that one, infinity too. NaN becomes 0x7f, a NaN, in f8 and 0 in i8. That holds for a factor
/// of 0, too: x / 0 is past the largest, 0 / 0 is NaN.
///
/// A sequence fits when its rows end inside the capacity, its pages are in the pool, its cache_batch_idx is a
/// row of the cache, and its positions are in the tables. On the CPU one that does not is an error, before
/// anything is written. On a GPU nothing is written for that sequence, q_out included, its seqlens_out is
/// what the cache held, and its `overflow` is set; the others are not affected. Two sequences that write to
/// the same page are not noticed.
/// @throws InvalidArgument, and on a GPU NotSupported (f32; more rows than one grid holds) and
///   EnvironmentError, before anything is written.
ONEPASS_API void append_kv(const AppendArguments& args, const AppendOptions& options = {},
                           Stream stream = {});

}  // namespace onepass
