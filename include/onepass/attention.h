// onepass/attention.h - exact attention: O = softmax(scale * Q K^T + mask) V, in one pass over K and V.
//
//   #include <onepass/attention.h>
//   onepass::ForwardArguments args;
//   args.q = onepass::make_view(q, onepass::DType::BF16, {batch, seqlen_q, num_heads_q, head_dim});
//   args.k = ...; args.v = ...; args.out = ...;
//   onepass::forward(args, {.causal = onepass::Causal::BottomRight});
//
// Gradients are onepass::backward with the same tensors, and dout, dq, dk, dv beside them.
//
// Algorithm: online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) over key tiles, the score
// matrix never stored (Rabe and Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135;
// Dao 2023, arXiv:2307.08691).
//
// Symbols: B sequences, Sq/Sk query/key length of one sequence, Hq/Hk query/key heads (Hq a multiple
// of Hk; query head h reads key head h / (Hq / Hk)), D head_dim of Q and K, Dv head_dim of V and O (1 to
// 1024 both), Tq/Tk rows of packed buffers. off = Sk - Sq: query row i stands at absolute position i + off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "onepass/error.h"
#include "onepass/plan.h"
#include "onepass/tensor_view.h"

namespace onepass {

/// Which keys a query may see because of its position.
enum class Causal : std::uint8_t {
  None,
  BottomRight,  ///< j <= i + Sk - Sq: the last query sees the last key (decoding with a prefix)
  TopLeft,      ///< j <= i
};

/// Who computes. Auto takes the first implementation that accepts.
enum class Backend : std::uint8_t { Auto, Cpu, Reference, Cuda };

/// A queue of GPU work: a CUstream or cudaStream_t of the device that the tensors are on; null is the default
/// stream. The CPU ignores it and has finished when a call returns.
struct Stream {
  void* handle = nullptr;
};

/// The tensors of one forward call. Views marked optional may be absent (rank 0).
///
/// Layouts of Q and O:
///   dense   q [B, Sq, Hq, D],  out [B, Sq, Hq, Dv], softmax_lse [B, Hq, Sq]
///   packed  q [Tq, Hq, D],     out [Tq, Hq, Dv],    softmax_lse [Hq, Tq]; cu_seqlens_q present
/// Layouts of K and V (chosen independently):
///   dense   k [B, Sk, Hk, D],  v [B, Sk, Hk, Dv]
///   packed  k [Tk, Hk, D],     v [Tk, Hk, Dv]; cu_seqlens_k present
///   paged   k [pages, page_size, Hk, D], v [pages, page_size, Hk, Dv]; block_table and seqused_k present
/// Other orders of dimensions are the same with exchanged strides: see onepass::transpose.
///
/// Dtypes: q, k, v, out one of f32, f16, bf16, all equal; k and v may both be f8 or i8 instead.
struct ForwardArguments {
  TensorView q, k, v;
  TensorView out;          ///< written: every element
  TensorView softmax_lse;  ///< optional, f32, written: natural-log sum of exp(score); -inf without keys

  TensorView cu_seqlens_q;  ///< optional, i32 [B+1]: sequence b starts at row cu_seqlens_q[b]
  TensorView cu_seqlens_k;  ///< optional, i32 [B+1]
  TensorView seqused_q;     ///< optional, i32 [B]: query rows of b in use, from its start
  TensorView seqused_k;     ///< optional, i32 [B]: key rows of b in use, from its start
  /// optional, i32 [B, max_pages]: token t is in page block_table[b][t / page_size]
  TensorView block_table;

  TensorView alibi_slopes;  ///< optional, f32 [Hq] or [B, Hq]: score -= slope * |i + off - j|
  /// optional, f32 or q's dtype, [B or 1, Hq or 1, Sq, Sk], the longest lengths or more: added to the score
  TensorView bias;
  TensorView sinks;  ///< optional, f32 [Hq]: exp(sink - m) joins the denominator
  /// optional, f32 [1], [Hk] or [B, Hk]: stored K times this is K (f8, i8). Of paged K and V with 8 bits also
  /// [pages, 1, Hk or 1]: factors of each page of the pool
  TensorView k_descale;
  TensorView v_descale;  ///< optional, likewise for V, in a shape of its own
};

/// The values of one forward call.
struct ForwardOptions {
  Causal causal = Causal::None;
  /// Row i sees i + off - window_left <= j <= i + off + window_right, whatever `causal` says;
  /// -1 means unlimited on that side. "The last W tokens" is window_left = W - 1, window_right = 0.
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  /// default 1 / sqrt(D); -1e30 to 1e30, also 0 and negative
  std::optional<double> softmax_scale = std::nullopt;
  double softcap = 0.0;  ///< score = softcap * tanh(score / softcap) when > 0; at most 1e30
  /// Upper bounds of the lengths of packed and paged sequences. Read from the index tensors when absent
  /// (needs index tensors in host memory).
  std::optional<std::int64_t> max_seqlen_q = std::nullopt;
  std::optional<std::int64_t> max_seqlen_k = std::nullopt;

  Backend backend = Backend::Auto;
  int num_threads = 0;  ///< CPU: 0 takes every core this process may use; at most 4096
  int num_splits = 0;   ///< parts that the keys are split into; 0 lets the planner choose; at most 1024
  /// The bits of a row follow from its own sequence: its query rows (and how many there are), keys, values
  /// and score terms. Neither other sequences, their number, lengths and order, nor threads or
  /// multiprocessors change them, in calls with the same tensor layouts, types and options on one kind of
  /// processor. On a GPU a dense q counts as many query rows as it has, whatever seqused_q says. Needs
  /// num_splits 0 and lengths of keys up to 2,097,152. docs/architecture.md says what it costs.
  bool batch_invariant = false;
};

/// Checks every rule, chooses an implementation for `device` and returns what would run. Pure: depends on
/// shapes, strides, dtypes, options, length bounds and `device` only. Tensor data may be null, except that
/// bounds not given in `options` are read from cu_seqlens/seqused in host memory.
/// @throws InvalidArgument, NotSupported.
ONEPASS_API Plan plan(const ForwardArguments& args, const ForwardOptions& options, const DeviceInfo& device);
/// The same for the device that the tensors are on.
/// @throws EnvironmentError too, when that is a GPU and the driver is missing or fails.
ONEPASS_API Plan plan(const ForwardArguments& args, const ForwardOptions& options = {});

/// Carries out a plan. `args` must have the shapes, strides and dtypes that the plan was made for, and
/// lengths within its bounds. `workspace` holds at least plan.workspace_bytes() bytes (nothing more is
/// allocated), aligned to 64, on the tensors' device; its contents need no preparation. On a GPU the work
/// is queued on `stream` when the call returns.
/// @throws InvalidArgument, and on a GPU EnvironmentError, before anything is written.
ONEPASS_API void run(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace,
                     Stream stream = {});

/// plan + a workspace + run.
/// @throws InvalidArgument, NotSupported, on a GPU EnvironmentError, and std::bad_alloc.
ONEPASS_API void forward(const ForwardArguments& args, const ForwardOptions& options = {},
                         Stream stream = {});

/// The tensors of one backward call: gradients of a loss, given its gradient with respect to O.
///
/// P is computed again from Q, K and softmax_lse, tile by tile; nothing of size Sq x Sk is stored. The same
/// call gives the same bits in every run. Gradients of rows that belong to no sequence, of keys that no query
/// sees and of queries that see no key are 0.
struct BackwardArguments {
  /// As given to forward(). Its `out` and `softmax_lse`, both required here, hold what forward() wrote, and
  /// nothing in it is written. Not for paged keys, 8-bit keys or descale factors.
  ForwardArguments forward;
  TensorView dout;  ///< as out, its dtype, any strides
  TensorView dlse;  ///< optional, f32, as softmax_lse, any strides: the loss's gradient with respect to it

  TensorView dq, dk, dv;  ///< written: every element; shapes and dtype of q, k, v
  TensorView dsinks;      ///< optional, f32 [Hq], written; needs forward.sinks
  /// optional, f32 or bias's dtype, written: every element; needs forward.bias and has its shape, so that a
  /// bias that all sequences or heads share gets the sum of their gradients
  TensorView dbias;
};

/// As for forward, with the options that forward() was given; `num_splits` plays no part. With
/// `batch_invariant` neither the batch nor the number of multiprocessors changes the bits of a sequence's dq,
/// dk and dv on a GPU; on the CPU it plays no part.
/// @throws InvalidArgument, NotSupported.
ONEPASS_API Plan plan(const BackwardArguments& args, const ForwardOptions& options, const DeviceInfo& device);
ONEPASS_API Plan plan(const BackwardArguments& args, const ForwardOptions& options = {});

/// Carries out a plan that was made for a backward call, as run() of a forward call does.
/// @throws InvalidArgument, and on a GPU EnvironmentError, before anything is written.
ONEPASS_API void run(const Plan& plan, const BackwardArguments& args, std::span<std::byte> workspace,
                     Stream stream = {});

/// plan + a workspace + run.
///
///   p_ij = exp(s_ij - lse_i)              delta_i = dot(dout_i, out_i) - dlse_i
///   dv_j = sum_i p_ij dout_i              ds_ij = p_ij (dot(dout_i, v_j) - delta_i), times softcap's slope
///   dq_i = scale * sum_j ds_ij k_j        dk_j = scale * sum_i ds_ij q_i
///   dbias_ij = ds_ij without that slope   dsinks_h = -sum_i exp(sink_h - lse_i) delta_i
/// @throws InvalidArgument, NotSupported, on a GPU EnvironmentError, and std::bad_alloc.
ONEPASS_API void backward(const BackwardArguments& args, const ForwardOptions& options = {},
                          Stream stream = {});

/// Two partial results over disjoint key sets, and where their union goes.
///   out_a, out_b, out  [B, Sq, Hq, Dv] (f32, f16 or bf16, each its own), any strides
///   lse_a, lse_b       [B, Hq, Sq] f32 natural log; lse likewise, optional
/// or packed: [Tq, Hq, Dv] and [Hq, Tq]. out may be out_a or out_b, lse may be lse_a or lse_b.
/// All on one device.
struct MergeArguments {
  TensorView out_a, lse_a, out_b, lse_b, out, lse;
};

/// lse = logaddexp(lse_a, lse_b); out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b.
/// -inf on one side returns the other side bit for bit (dtypes allowing); on both gives 0 and -inf.
/// On a GPU the work is queued on `stream` when the call returns. num_threads is for the CPU, as in
/// ForwardOptions.
/// @throws InvalidArgument, and on a GPU NotSupported (more rows than one grid holds) and EnvironmentError.
ONEPASS_API void merge(const MergeArguments& args, int num_threads = 0, Stream stream = {});

}  // namespace onepass
