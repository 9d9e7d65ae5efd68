// params.h - what a kernel is launched with: plain structs read by g++ and by NVRTC alike.
// Strides count elements. A pointer that may be null says so. Sizes are asserted on both sides.
#pragma once

#include "common/fast_divisor.h"

namespace onepass::cuda {

/// A [sequence, row, head, dim] tensor whose last dimension has stride 1. Packed buffers have batch_stride 0;
/// a paged pool's batch_stride is the page stride, its row_stride the slot stride.
struct TensorParams {
  void* data;
  long long batch_stride, row_stride, head_stride;
};

/// int32 vector, may be null.
struct IndexParams {
  const int* data;
  long long stride;
};

struct ForwardParams {
  TensorParams q;  // [B, Sq, Hq, D]   or packed [Tq, Hq, D]
  TensorParams k;  // [B, Sk, Hk, D]   or packed [Tk, Hk, D], or pages [pages, page_size, Hk, D]
  TensorParams v;  // [B, Sk, Hk, Dv]  likewise
  TensorParams o;  // [B, Sq, Hq, Dv]  or packed; with splits: unused
  float* lse;      // [B, Hq, Sq] or [Hq, Tq], may be null
  long long lse_batch_stride, lse_head_stride, lse_row_stride;

  IndexParams cu_seqlens_q;  // [B + 1], null: dense
  IndexParams cu_seqlens_k;  // [B + 1], null: dense or paged
  IndexParams seqused_q;     // [B], null: all rows
  IndexParams seqused_k;     // [B], null: all rows
  const int* block_table;    // [B, max_pages], null: not paged
  long long table_batch_stride, table_page_stride;

  const float* alibi_slopes;  // [Hq] or [B, Hq], may be null
  long long alibi_batch_stride, alibi_head_stride;
  const void* bias;  // [B or 1, Hq or 1, Sq, Sk], f32 or the element type, may be null
  long long bias_batch_stride, bias_head_stride, bias_row_stride, bias_key_stride;
  const float* sinks;  // [Hq], may be null
  long long sinks_stride;

  // f32 [num_splits, rows, Dv]; rows = B * Hq * Sq or Hq * Tq. Of sm90_decode's shares: two parts
  // of a tile of rows for each block. null: not split
  float* split_o;
  float* split_lse;  // likewise, without Dv
  int* error_flag;   // set to a KernelError when device-resident lengths or tables lead out of bounds

  // What indices are divided by; each .divisor is the number itself.
  FastDivisor m_blocks;    // row tiles of a head, of the forward kernel
  FastDivisor tile_heads;  // heads that have tiles: Hk where the heads of a group share tiles, else Hq
  FastDivisor group;       // Hq / Hk
  FastDivisor num_splits;
  FastDivisor page_size;  // of a paged pool

  int batch, num_heads_q, num_heads_k;
  int head_dim, head_dim_v;
  int seqlen_q, seqlen_k;  // extents (dense) or upper bounds
  int total_q, total_k;    // rows of packed buffers
  int num_pages, max_pages;
  int mask_kind;  // onepass::MaskKind
  int bias_is_f32;
  long long window_left, window_right;  // negative: unlimited
  float softmax_scale;
  // factor of the exponent's argument: scale * log2(e), or log2(e) after score terms
  float softmax_scale_log2;
  float softcap;  // 0: none
};

/// CUtensorMap: a tensor as the tensor memory accelerator sees it, encoded by the driver.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

/// What the sm90 forward kernels are launched with.
struct Sm90ForwardParams {
  TensorMap q;  // boxes of 64 columns x tile_m rows
  TensorMap k;  // boxes of 64 columns x tile_n rows; of pages [pages, page_size, Hk, D], x page_box rows
  TensorMap v;  // likewise
  ForwardParams forward;
  // Next tile to be worked on: launch id in the high word, count in the low one. Whatever it
  // held before the launch will do, but for this very id (one chance in 2^32 with leftovers of others).
  unsigned long long* ticket;  // null: thread blocks take tiles in turn
  unsigned launch_id;          // differs from launch to launch; not 0
  int num_tiles;
  // Heads of all sequences whose tiles follow each other, longest rows first, and the tiles of such a group;
  // the last group is counted as if it were full. Of a ragged batch: heads of one sequence, and unused.
  FastDivisor head_group, group_tiles;
  int draw_early;  // tickets are drawn a tile ahead
  int page_box;    // rows of a page that are copied at once; a divisor of page_size and of tile_n
  int unused[2];
};

/// What stored elements of K or V are multiplied by.
struct ScaleParams {
  const float* data;  // [1], [Hk], [B, Hk], [pages, 1, 1] or [pages, 1, Hk], null: 1
  long long batch_stride, page_stride, head_stride;
};

/// What the sm90 decode kernels are launched with.
struct Sm90DecodeParams {
  // Columns count 16 bits, whatever the element type. Boxes of box_keys rows x all columns or, where these
  // are no multiple of 64, x 64. Unused where keys are gathered
  TensorMap k;
  TensorMap v;  // likewise
  ForwardParams forward;
  ScaleParams k_scale, v_scale;  // of 8-bit K and V
  // [B, Hk, m_blocks] counts of thread blocks that have stored their part (common/launch_count.cuh); of
  // blocks that stay, one for each of these. null: neither
  unsigned long long* arrivals;
  unsigned launch_id;   // differs from launch to launch; not 0
  int box_keys, boxes;  // of a tile of keys: box_keys * boxes; one where they are gathered
  // Of blocks that stay. By number: items are tiles of rows, times splits. By shares: num_shares teams of
  // blocks, each with a share of the keys; a sequence has team * rounds tiles of rows
  FastDivisor team;
  int num_shares, rounds, slots_in_flight;
  int num_items;
  int unused[8];
};

/// What backward kernels are launched with. Statistics of query rows lie in the workspace in f32, one for
/// each row and head, as common/gradient_rows.h says.
struct BackwardParams {
  ForwardParams forward;  // o and lse are read
  TensorParams dout;      // [B, Sq, Hq, Dv] or packed; its last dimension has stride 1, see dout_source
  TensorParams dq, dk, dv;
  TensorParams dout_source;  // the caller's, where dout is a copy in the workspace
  long long dout_source_dim_stride;
  const float* dlse;  // as lse, may be null
  long long dlse_batch_stride, dlse_head_stride, dlse_row_stride;
  float* lse_log2;  // lse * log2(e); +inf for rows without keys, so that P is 0
  float* delta;     // dot(dout, o) - dlse
  float* dsinks;    // [Hq], may be null
  long long dsinks_stride;
  void* dbias;  // [B or 1, Hq or 1, rows, keys], f32 or the element type, may be null
  long long dbias_batch_stride, dbias_head_stride, dbias_row_stride, dbias_key_stride;
  int dbias_batch, dbias_heads, dbias_rows, dbias_keys;
  int dbias_is_f32;
  int unused;
};

/// What the sm90 backward kernels are launched with. Blocks of query rows (tile_m of them) are numbered as
/// the statistics of the rows are (common/gradient_rows.h), over tile_m.
struct Sm90BackwardParams {
  TensorMap q;     // boxes of 64 columns x tile_m rows
  TensorMap k;     // boxes of 64 columns x tile_n rows
  TensorMap v;     // likewise
  TensorMap dout;  // as q
  BackwardParams backward;
  float* dq_sums;       // [blocks, tile_m * head_dim in the order of the products' registers]
  int* turns;           // [blocks]: how many tiles have added to dq_sums
  unsigned* ticket;     // tiles that were drawn
  int blocks_per_head;  // of query rows: from a head of a sequence to the next
  int n_blocks;         // tiles of keys of a head
  // Heads of keys of all sequences whose tiles add in the order of descending keys, and come first; how many
  // of them, and of the others, which ascend, take turns to draw tiles.
  int descending_heads, descending_group, ascending_group;
  int num_tiles;
  int unused[4];
};

/// Element type of a tensor whose kernel takes several.
enum class FloatType : int { F32 = 0, F16 = 1, Bf16 = 2 };

/// A partial result: out [B, S, H, Dv] and lse [B, H, S]; packed ones are a batch of one.
struct StateParams {
  void* out;
  long long batch_stride, row_stride, head_stride, dim_stride;
  float* lse;  // of the result: may be null
  long long lse_batch_stride, lse_head_stride, lse_row_stride;
  FloatType type;  // of out
  int unused;
};

struct MergeParams {
  StateParams a, b, out;
  long long num_rows;  // S
  int batch, num_heads, head_dim_v;
  int unused;
};

/// int32 vector that is written, may be null.
struct IndexResultParams {
  int* data;
  long long stride;
};

/// New keys and values for a cache (any/append_kv.cuh).
struct AppendKvParams {
  TensorParams k_new, v_new;                 // [B, Sn, Hk, D] and [B, Sn, Hk, Dv], or packed [Tn, ...]
  TensorParams k_cache, v_cache;             // [rows, capacity, ...], or pages [pages, page_size, ...]
  TensorParams q, q_out;                     // [B, Sq, Hq, D], or packed; null: none
  IndexParams cu_seqlens_new, cu_seqlens_q;  // [B + 1], null: dense
  IndexParams seqused_new;                   // [B], null: all rows
  IndexParams cache_seqlens;                 // [B], null: 0
  IndexParams cache_batch_idx;               // [B], null: b, or paged
  IndexParams rotary_positions;              // [B], null: cache_seqlens
  const int* block_table;                    // [B, max_pages], null: not paged
  long long table_batch_stride, table_page_stride;
  const void*
      rotary_cos;  // [num_positions, rotary_pairs], f32 or the element type; null: no rotary embedding
  const void* rotary_sin;
  long long cos_stride, sin_stride;
  ScaleParams k_scale, v_scale;             // of a cache with 8 bits
  IndexResultParams seqlens_out, overflow;  // [B], may be null
  int* error_flag;                          // set to a KernelError where there is no overflow

  // What indices are divided by; each .divisor is the number itself.
  FastDivisor seqlen_new, seqlen_q;  // 0: packed
  FastDivisor page_size;             // 0: not paged
  FastDivisor k_units, v_units;      // pieces of work of a head's row: of keys and q, of values

  long long capacity;  // rows of a sequence in the cache
  int batch, num_heads_k, num_heads_q;
  int head_dim, head_dim_v;
  int rows_new, rows_q;
  int cache_rows, num_pages;
  int rotary_pairs, num_positions;
  int interleaved, tables_are_f32, q_at_first_position;
  int unused;
};

constexpr int kMostParts = 3;  // of a mixed batch

/// Query rows of each sequence, for launches of some of them each (any/part_lengths.cuh).
struct PartLengthsParams {
  IndexParams cu_seqlens_q;   // [B + 1]
  IndexParams seqused_q;      // [B], null: all rows
  int* lengths;               // [num_parts, B]
  int most_rows[kMostParts];  // of a part's sequences, falling
  int batch, num_parts;
};

/// The plain three-step evaluation (baseline/naive.cuh); every tensor dense.
struct NaiveParams {
  TensorParams q, k, v, o;
  float* scores;        // [B, Hq, Sq, Sk]
  void* probabilities;  // [B, Hq, Sq, Sk], the element type
  int batch, num_heads_q, group;
  int seqlen_q, seqlen_k, head_dim, head_dim_v;
  int mask_kind;  // onepass::MaskKind
  long long window_left, window_right;
  float softmax_scale;
  int unused;
};

enum class KernelError : int { None = 0, PageOutOfPool = 1, LengthPastCapacity = 2 };

static_assert(sizeof(TensorParams) == 32, "host and device must agree");
static_assert(sizeof(ForwardParams) == 496, "host and device must agree");
static_assert(sizeof(Sm90ForwardParams) == 960, "host and device must agree");
static_assert(sizeof(Sm90DecodeParams) == 896, "host and device must agree");
static_assert(sizeof(BackwardParams) == 792, "host and device must agree");
static_assert(sizeof(Sm90BackwardParams) == 1408, "host and device must agree");
static_assert(sizeof(MergeParams) == 264, "host and device must agree");
static_assert(sizeof(NaiveParams) == 200, "host and device must agree");

}  // namespace onepass::cuda
