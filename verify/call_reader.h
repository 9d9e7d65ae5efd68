// The inputs of a call, read by the definitions of spec sections 1 and 2 for the float64 evaluations: shares
// no mask, address or loop code with any backend.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "onepass/attention.h"
#include "support/float_types.h"
#include "verify/oracle.h"

namespace onepass::verify {

/// Offset of an element, by the definition of strides.
inline std::int64_t offset(const TensorView& view, std::initializer_list<std::int64_t> idx) {
  std::int64_t sum = 0;
  std::size_t dim = 0;
  for (const std::int64_t i : idx) sum += i * view.strides[dim++];
  return sum;
}

inline double value(const TensorView& view, std::initializer_list<std::int64_t> idx) {
  return static_cast<double>(load_float(view.data, view.dtype, offset(view, idx)));
}

inline std::int64_t integer(const TensorView& view, std::initializer_list<std::int64_t> idx) {
  return static_cast<const std::int32_t*>(view.data)[offset(view, idx)];
}

/// [1], [H] or [B, H]; `absent` when absent.
inline double per_head(const TensorView& view, std::int64_t b, std::int64_t h, double absent) {
  if (!view.present()) return absent;
  if (view.rank == 2) return value(view, {b, h});
  return value(view, {view.shape[0] == 1 ? 0 : h});
}

/// What memory of that dtype makes of x.
inline float rounded(DType dtype, float x) {
  std::uint32_t memory = 0;
  store_float(&memory, dtype, 0, x);
  return load_float(&memory, dtype, 0);
}

template <class T>
T dot_product(const T* a, const T* b, std::int64_t count) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t d = 0; d < count; ++d) sum += a[d] * b[d];
  return sum;
}

struct Lengths {
  std::int64_t first_row = 0, first_key = 0;  // of q and k: b * Sq and b * Sk, or of the packed buffers
  std::int64_t seqlen_q = 0, seqlen_k = 0;
};

/// K and V of one sequence and key head, in order of tokens; (seqlen_k, head_dim) and (seqlen_k, head_dim_v).
/// The plain evaluation reads them as f32.
struct Keys {
  std::vector<double> k, v;
  std::vector<float> plain_k, plain_v;
};

class CallReader {
 public:
  CallReader(const ForwardArguments& args, const ForwardOptions& options)
      : a(args),
        mask{options.causal, options.window_left, options.window_right},
        softcap(options.softcap),
        packed_q(args.cu_seqlens_q.present()),
        head_dim(args.q.shape[static_cast<std::size_t>(args.q.rank - 1)]),
        head_dim_v(args.v.shape[static_cast<std::size_t>(args.v.rank - 1)]),
        num_heads_q(args.q.shape[static_cast<std::size_t>(args.q.rank - 2)]),
        num_heads_k(args.k.shape[static_cast<std::size_t>(args.k.rank - 2)]),
        batch(packed_q ? args.cu_seqlens_q.shape[0] - 1 : args.q.shape[0]),
        num_rows_q(packed_q ? args.q.shape[0] : args.q.shape[0] * args.q.shape[1]),
        scale(options.softmax_scale ? *options.softmax_scale
                                    : 1.0 / std::sqrt(static_cast<double>(head_dim))) {}

  std::int64_t group() const { return num_heads_q / num_heads_k; }

  Lengths lengths(std::int64_t b) const {
    Lengths s;
    if (packed_q) {
      s.first_row = integer(a.cu_seqlens_q, {b});
      s.seqlen_q = integer(a.cu_seqlens_q, {b + 1}) - s.first_row;
    } else {
      s.first_row = b * a.q.shape[1];
      s.seqlen_q = a.q.shape[1];
    }
    if (a.cu_seqlens_k.present()) {
      s.first_key = integer(a.cu_seqlens_k, {b});
      s.seqlen_k = integer(a.cu_seqlens_k, {b + 1}) - s.first_key;
    } else {
      s.first_key = b * a.k.shape[1];
      s.seqlen_k = a.k.shape[1];
    }
    if (a.seqused_q.present()) s.seqlen_q = integer(a.seqused_q, {b});
    if (a.seqused_k.present()) s.seqlen_k = integer(a.seqused_k, {b});
    return s;
  }

  Keys load_keys(std::int64_t b, std::int64_t hk, std::int64_t seqlen_k) const {
    Keys keys;
    keys.k.reserve(static_cast<std::size_t>(seqlen_k * head_dim));
    keys.v.reserve(static_cast<std::size_t>(seqlen_k * head_dim_v));
    for (std::int64_t j = 0; j < seqlen_k; ++j) {
      const double k_descale = descale(a.k_descale, b, hk, j), v_descale = descale(a.v_descale, b, hk, j);
      for (std::int64_t d = 0; d < head_dim; ++d) keys.k.push_back(k_descale * key_value(a.k, b, hk, j, d));
      for (std::int64_t d = 0; d < head_dim_v; ++d) keys.v.push_back(v_descale * key_value(a.v, b, hk, j, d));
    }
    keys.plain_k.assign(keys.k.begin(), keys.k.end());
    keys.plain_v.assign(keys.v.begin(), keys.v.end());
    return keys;
  }

  /// Row i of a tensor of q's kind: q, out, dout.
  std::vector<double> query_row(const TensorView& t, std::int64_t b, const Lengths& s, std::int64_t h,
                                std::int64_t i) const {
    std::vector<double> row(static_cast<std::size_t>(t.shape[static_cast<std::size_t>(t.rank - 1)]));
    for (std::size_t d = 0; d < row.size(); ++d) {
      const auto channel = static_cast<std::int64_t>(d);
      row[d] = packed_q ? value(t, {s.first_row + i, h, channel}) : value(t, {b, i, h, channel});
    }
    return row;
  }

  double statistic(const TensorView& t, std::int64_t b, const Lengths& s, std::int64_t h,
                   std::int64_t i) const {
    return packed_q ? value(t, {h, s.first_row + i}) : value(t, {b, h, i});
  }

  /// `slope`, when given, gets the derivative of the softcap.
  double score(double dot, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, const Lengths& s,
               double* slope = nullptr) const {
    double x = scale * dot;
    if (slope != nullptr) *slope = 1.0;
    if (softcap > 0) {
      const double t = std::tanh(x / softcap);
      x = softcap * t;
      if (slope != nullptr) *slope = 1.0 - t * t;
    }
    if (a.alibi_slopes.present()) {
      const std::int64_t distance = std::abs(i + s.seqlen_k - s.seqlen_q - j);
      x -= per_head(a.alibi_slopes, b, h, 0.0) * static_cast<double>(distance);
    }
    if (a.bias.present()) {
      x += value(a.bias, {a.bias.shape[0] == 1 ? 0 : b, a.bias.shape[1] == 1 ? 0 : h, i, j});
    }
    return x;
  }

  const ForwardArguments& a;
  Mask mask;
  double softcap;
  bool packed_q;
  std::int64_t head_dim, head_dim_v, num_heads_q, num_heads_k, batch, num_rows_q;
  double scale;

 private:
  double descale(const TensorView& t, std::int64_t b, std::int64_t hk, std::int64_t j) const {
    if (t.rank != 3) return per_head(t, b, hk, 1.0);
    const std::int64_t page = integer(a.block_table, {b, j / a.k.shape[1]});
    return value(t, {page, 0, t.shape[2] == 1 ? 0 : hk});
  }

  double key_value(const TensorView& t, std::int64_t b, std::int64_t hk, std::int64_t j,
                   std::int64_t d) const {
    if (a.block_table.present()) {
      const std::int64_t page_size = t.shape[1];
      return value(t, {integer(a.block_table, {b, j / page_size}), j % page_size, hk, d});
    }
    if (a.cu_seqlens_k.present()) return value(t, {integer(a.cu_seqlens_k, {b}) + j, hk, d});
    return value(t, {b, j, hk, d});
  }
};

}  // namespace onepass::verify
