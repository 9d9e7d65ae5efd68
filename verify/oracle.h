// The formula of spec section 2, word for word, in float64: a second opinion that shares no mask, address or
// loop code with any backend, so that the reference backend is tested too.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "onepass/attention.h"

namespace onepass::verify {

/// "Allowed" of spec section 2 as a question about one pair.
struct Mask {
  Causal causal = Causal::None;
  std::int64_t window_left = -1, window_right = -1;

  bool allows(std::int64_t i, std::int64_t j, std::int64_t seqlen_q, std::int64_t seqlen_k) const {
    const std::int64_t position = i + seqlen_k - seqlen_q;
    if (causal == Causal::BottomRight && j > position) return false;
    if (causal == Causal::TopLeft && j > i) return false;
    if (window_left >= 0 && position - j > window_left)
      return false;  // no sum that a huge window could overflow
    if (window_right >= 0 && j - position > window_right) return false;
    return true;
  }
};

/// Where a row of q belongs; batch -1 for rows of no sequence.
struct RowOwner {
  std::int64_t batch = -1;
  std::int64_t row = 0;       // within its sequence
  std::int64_t seqlen_q = 0;  // of its sequence
  std::int64_t seqlen_k = 0;
};

struct Evaluation {
  std::int64_t num_rows = 0;  // dense: B * Sq, row b * Sq + i; packed: Tq
  std::int64_t num_heads = 0, head_dim_v = 0;
  std::vector<RowOwner> owners;         // [row]
  std::vector<double> out;              // [row, head, channel]
  std::vector<float> plain_out;         // likewise: S and P materialised in q's dtype, sums in f32
  std::vector<double> lse;              // [row, head]
  std::vector<std::uint8_t> sees_keys;  // [row, head]: the mask allows some key
};

/// Evaluates a call whose arguments are valid. Uses every core; `progress`, when given, hears the share
/// that is done, from one thread at a time.
Evaluation evaluate(const ForwardArguments& args, const ForwardOptions& options,
                    const std::function<void(double)>& progress = {});

}  // namespace onepass::verify
