// The checked form of one call, forward or backward: plain values, no pointers, everything optional resolved.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "backends/cuda/kernels/common/tile_range.h"
#include "onepass/attention.h"

namespace onepass {

enum class SequenceLayout : std::uint8_t { Dense, Packed, Paged };

const char* layout_name(SequenceLayout layout);
const char* causal_name(Causal causal);
const char* backend_name(Backend backend);  // "auto", "cpu", "reference", "cuda"

constexpr MaskKind mask_kind(Causal causal) {
  switch (causal) {
    case Causal::None: return MaskKind::None;
    case Causal::BottomRight: return MaskKind::CausalBottomRight;
    case Causal::TopLeft: return MaskKind::CausalTopLeft;
  }
  return MaskKind::None;
}

/// Strides in elements of a [sequence, row, head, dim] tensor. Packed buffers have batch = 0;
/// a paged pool's `batch` is the page stride, its `row` the slot stride.
struct TensorStrides {
  std::int64_t batch = 0, row = 0, head = 0, dim = 1;
  bool operator==(const TensorStrides&) const = default;
};

/// What a backward call has beside the tensors of its forward call.
struct GradientProblem {
  bool has_dlse = false, has_dsinks = false, has_dbias = false;
  DType dbias_dtype = DType::F32;             // f32 unless has_dbias
  std::array<std::int64_t, 4> dbias_shape{};  // zeros unless has_dbias
  TensorStrides dout, dq, dk, dv;

  bool operator==(const GradientProblem&) const = default;
};

struct AttentionProblem {
  DType q_dtype = DType::F32;  // also the type of out
  DType kv_dtype = DType::F32;
  DType bias_dtype = DType::F32;

  std::int64_t batch = 0;
  std::int64_t num_heads_q = 0, num_heads_k = 0;  // num_heads_q is a multiple of num_heads_k
  std::int64_t head_dim = 0, head_dim_v = 0;
  std::int64_t seqlen_q = 0, seqlen_k = 0;  // dense: the extent; otherwise an upper bound of any sequence

  SequenceLayout q_layout = SequenceLayout::Dense;  // Dense or Packed
  SequenceLayout k_layout = SequenceLayout::Dense;
  std::int64_t total_q = 0;  // rows of q: batch * seqlen_q, or Tq
  std::int64_t total_k = 0;  // rows of k: batch * seqlen_k, Tk, or num_pages * page_size
  std::int64_t page_size = 0, num_pages = 0, max_pages_per_sequence = 0;  // paged only
  bool has_seqused_q = false, has_seqused_k = false;

  Causal causal = Causal::None;
  std::int64_t window_left = -1, window_right = -1;
  double softmax_scale = 1.0;
  double softcap = 0.0;  // 0: none
  bool has_alibi = false, has_bias = false, has_sinks = false;
  bool has_k_descale = false, has_v_descale = false;
  bool k_descale_per_page = false, v_descale_per_page = false;  // of has_*: factors belong to pages of a pool
  bool has_lse = false;
  bool batch_invariant = false;

  DeviceKind memory = DeviceKind::Cpu;  // where every tensor of the call lives
  TensorStrides q, k, v, out;
  std::optional<GradientProblem> gradient;  // of a backward call, which has an LSE and neither pages nor f8

  std::int64_t group() const { return num_heads_k == 0 ? 1 : num_heads_q / num_heads_k; }
  /// The mask forbids nothing but keys past the end.
  bool unmasked() const { return causal == Causal::None && window_left < 0 && window_right < 0; }

  bool has_page_factors() const { return k_descale_per_page || v_descale_per_page; }

  /// Scores are more than a dot product times a positive scale.
  bool has_score_terms() const {
    return softcap > 0 || has_alibi || has_bias || static_cast<float>(softmax_scale) <= 0;
  }

  bool operator==(const AttentionProblem&) const = default;
};

/// One line for logs and errors, e.g.
/// "bf16 q [2, 512, 32, 128] dense, k [2, 512, 4, 128] dense, v dim 128, causal bottom-right, scale 0.0884".
std::string to_string(const AttentionProblem& problem);

}  // namespace onepass
