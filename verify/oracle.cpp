#include "verify/oracle.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "support/float_types.h"

namespace onepass::verify {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Offset of an element, by the definition of strides.
std::int64_t offset(const TensorView& view, std::initializer_list<std::int64_t> idx) {
  std::int64_t sum = 0;
  std::size_t dim = 0;
  for (const std::int64_t i : idx) sum += i * view.strides[dim++];
  return sum;
}

double value(const TensorView& view, std::initializer_list<std::int64_t> idx) {
  return static_cast<double>(load_float(view.data, view.dtype, offset(view, idx)));
}

std::int64_t integer(const TensorView& view, std::initializer_list<std::int64_t> idx) {
  return static_cast<const std::int32_t*>(view.data)[offset(view, idx)];
}

/// [1], [H] or [B, H]; 1 when absent.
double per_head(const TensorView& view, std::int64_t b, std::int64_t h, double absent) {
  if (!view.present()) return absent;
  if (view.rank == 2) return value(view, {b, h});
  return value(view, {view.shape[0] == 1 ? 0 : h});
}

float rounded(DType dtype, float x) {
  std::uint32_t memory = 0;
  store_float(&memory, dtype, 0, x);
  return load_float(&memory, dtype, 0);
}

struct Lengths {
  std::int64_t first_row = 0;  // of q, in the evaluation's numbering
  std::int64_t seqlen_q = 0, seqlen_k = 0;
};

/// K and V of one sequence and key head, in order of tokens; (seqlen_k, head_dim) and (seqlen_k, head_dim_v).
/// The plain evaluation reads them as f32.
struct Keys {
  std::vector<double> k, v;
  std::vector<float> plain_k, plain_v;
};

class Evaluator {
 public:
  Evaluator(const ForwardArguments& args, const ForwardOptions& options)
      : a_(args),
        mask_{options.causal, options.window_left, options.window_right},
        softcap_(options.softcap),
        packed_q_(args.cu_seqlens_q.present()),
        head_dim_(args.q.shape[static_cast<std::size_t>(args.q.rank - 1)]),
        scale_(options.softmax_scale ? *options.softmax_scale
                                     : 1.0 / std::sqrt(static_cast<double>(head_dim_))) {
    r_.num_heads = args.q.shape[static_cast<std::size_t>(args.q.rank - 2)];
    num_heads_k_ = args.k.shape[static_cast<std::size_t>(args.k.rank - 2)];
    r_.head_dim_v = args.v.shape[static_cast<std::size_t>(args.v.rank - 1)];
    r_.num_rows = packed_q_ ? args.q.shape[0] : args.q.shape[0] * args.q.shape[1];
    batch_ = packed_q_ ? args.cu_seqlens_q.shape[0] - 1 : args.q.shape[0];
    r_.owners.resize(static_cast<std::size_t>(r_.num_rows));
    const auto cells = static_cast<std::size_t>(r_.num_rows * r_.num_heads);
    r_.out.assign(cells * static_cast<std::size_t>(r_.head_dim_v), 0.0);
    r_.plain_out.assign(r_.out.size(), 0.0f);
    r_.lse.assign(cells, -kInf);
    r_.sees_keys.assign(cells, 0);
  }

  Evaluation evaluate(const std::function<void(double)>& progress) {
    std::vector<Lengths> sequences;
    for (std::int64_t b = 0; b < batch_; ++b) sequences.push_back(lengths(b));
    const std::int64_t num_items = batch_ * num_heads_k_;
    const std::int64_t group = r_.num_heads / num_heads_k_;
    std::atomic<std::int64_t> done = 0;
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t item = 0; item < num_items; ++item) {
      const std::int64_t b = item / num_heads_k_, hk = item % num_heads_k_;
      const Lengths& s = sequences[static_cast<std::size_t>(b)];
      const Keys keys = load_keys(b, hk, s.seqlen_k);
      for (std::int64_t h = hk * group; h < (hk + 1) * group; ++h) {
        for (std::int64_t i = 0; i < s.seqlen_q; ++i) row(b, h, i, s, keys);
      }
      const std::int64_t count = ++done;
      if (progress) {
#pragma omp critical(onepass_verify_progress)
        progress(static_cast<double>(count) / static_cast<double>(num_items));
      }
    }
    return std::move(r_);
  }

 private:
  Lengths lengths(std::int64_t b) {
    Lengths s;
    if (packed_q_) {
      s.first_row = integer(a_.cu_seqlens_q, {b});
      s.seqlen_q = integer(a_.cu_seqlens_q, {b + 1}) - s.first_row;
    } else {
      s.first_row = b * a_.q.shape[1];
      s.seqlen_q = a_.q.shape[1];
    }
    if (a_.seqused_q.present()) s.seqlen_q = integer(a_.seqused_q, {b});
    if (a_.seqused_k.present()) {
      s.seqlen_k = integer(a_.seqused_k, {b});
    } else if (a_.cu_seqlens_k.present()) {
      s.seqlen_k = integer(a_.cu_seqlens_k, {b + 1}) - integer(a_.cu_seqlens_k, {b});
    } else {
      s.seqlen_k = a_.k.shape[1];
    }
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      r_.owners[static_cast<std::size_t>(s.first_row + i)] = {b, i, s.seqlen_q, s.seqlen_k};
    }
    return s;
  }

  double kv_value(const TensorView& t, std::int64_t b, std::int64_t hk, std::int64_t j,
                  std::int64_t d) const {
    if (a_.block_table.present()) {
      const std::int64_t page_size = t.shape[1];
      return value(t, {integer(a_.block_table, {b, j / page_size}), j % page_size, hk, d});
    }
    if (a_.cu_seqlens_k.present()) return value(t, {integer(a_.cu_seqlens_k, {b}) + j, hk, d});
    return value(t, {b, j, hk, d});
  }

  Keys load_keys(std::int64_t b, std::int64_t hk, std::int64_t seqlen_k) const {
    Keys keys;
    keys.k.reserve(static_cast<std::size_t>(seqlen_k * head_dim_));
    keys.v.reserve(static_cast<std::size_t>(seqlen_k * r_.head_dim_v));
    const double k_descale = per_head(a_.k_descale, b, hk, 1.0),
                 v_descale = per_head(a_.v_descale, b, hk, 1.0);
    for (std::int64_t j = 0; j < seqlen_k; ++j) {
      for (std::int64_t d = 0; d < head_dim_; ++d) keys.k.push_back(k_descale * kv_value(a_.k, b, hk, j, d));
      for (std::int64_t d = 0; d < r_.head_dim_v; ++d)
        keys.v.push_back(v_descale * kv_value(a_.v, b, hk, j, d));
    }
    keys.plain_k.assign(keys.k.begin(), keys.k.end());
    keys.plain_v.assign(keys.v.begin(), keys.v.end());
    return keys;
  }

  void row(std::int64_t b, std::int64_t h, std::int64_t i, const Lengths& s, const Keys& keys) {
    std::vector<double> q(static_cast<std::size_t>(head_dim_));
    for (std::int64_t d = 0; d < head_dim_; ++d) {
      q[static_cast<std::size_t>(d)] =
          packed_q_ ? value(a_.q, {s.first_row + i, h, d}) : value(a_.q, {b, i, h, d});
    }
    const std::vector<float> plain_q(q.begin(), q.end());
    std::vector<std::int64_t> allowed;
    std::vector<double> scores;
    std::vector<float> plain_scores;  // S, materialised in q's dtype
    for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
      if (!mask_.allows(i, j, s.seqlen_q, s.seqlen_k)) continue;
      allowed.push_back(j);
      const double dot = product(q.data(), keys.k.data() + j * head_dim_);
      const float plain_dot = product(plain_q.data(), keys.plain_k.data() + j * head_dim_);
      scores.push_back(score(dot, b, h, i, j, s));
      const double plain = score(static_cast<double>(plain_dot), b, h, i, j, s);
      plain_scores.push_back(rounded(a_.q.dtype, static_cast<float>(plain)));
    }
    const auto cell = static_cast<std::size_t>((s.first_row + i) * r_.num_heads + h);
    r_.sees_keys[cell] = !allowed.empty();
    const double sink = a_.sinks.present() ? value(a_.sinks, {h}) : -kInf;
    double* out = r_.out.data() + static_cast<std::int64_t>(cell) * r_.head_dim_v;
    r_.lse[cell] = softmax_times_v(allowed, scores, sink, keys, out);
    plain_softmax_times_v(allowed, plain_scores, sink, keys, r_.plain_out.data() + (out - r_.out.data()));
  }

  template <class T>
  T product(const T* a, const T* b) const {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t d = 0; d < head_dim_; ++d) sum += a[d] * b[d];
    return sum;
  }

  double score(double dot, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j,
               const Lengths& s) const {
    double x = scale_ * dot;
    if (softcap_ > 0) x = softcap_ * std::tanh(x / softcap_);
    if (a_.alibi_slopes.present()) {
      const std::int64_t distance = std::abs(i + s.seqlen_k - s.seqlen_q - j);
      x -= per_head(a_.alibi_slopes, b, h, 0.0) * static_cast<double>(distance);
    }
    if (a_.bias.present()) {
      x += value(a_.bias, {a_.bias.shape[0] == 1 ? 0 : b, a_.bias.shape[1] == 1 ? 0 : h, i, j});
    }
    return x;
  }

  /// max that lets NaN through.
  template <class T>
  static T largest(const std::vector<T>& values, T start) {
    T m = start;
    for (const T x : values) m = x > m || std::isnan(x) ? x : m;
    return m;
  }

  /// Fills out (head_dim_v) and returns the LSE.
  double softmax_times_v(const std::vector<std::int64_t>& allowed, const std::vector<double>& scores,
                         double sink, const Keys& keys, double* out) const {
    const double m = largest(scores, sink);
    if (m == -kInf) return -kInf;  // no key, or every score -inf: o = 0
    double l = std::exp(sink - m);
    for (std::size_t n = 0; n < allowed.size(); ++n) {
      const double p = std::exp(scores[n] - m);
      const double* v = keys.v.data() + allowed[n] * r_.head_dim_v;
      l += p;
      for (std::int64_t d = 0; d < r_.head_dim_v; ++d) out[d] += p * v[d];
    }
    for (std::int64_t d = 0; d < r_.head_dim_v; ++d) out[d] /= l;
    return m + std::log(l);
  }

  /// The second and third step of the plain evaluation: P rounded to q's dtype, then P V summed in f32,
  /// rounded.
  void plain_softmax_times_v(const std::vector<std::int64_t>& allowed, const std::vector<float>& scores,
                             double sink, const Keys& keys, float* out) const {
    const float m = largest(scores, static_cast<float>(sink));
    if (m == -static_cast<float>(kInf)) return;
    float l = std::exp(static_cast<float>(sink) - m);
    for (const float x : scores) l += std::exp(x - m);
    for (std::size_t n = 0; n < allowed.size(); ++n) {
      const float p = rounded(a_.q.dtype, std::exp(scores[n] - m) / l);
      const float* v = keys.plain_v.data() + allowed[n] * r_.head_dim_v;
      for (std::int64_t d = 0; d < r_.head_dim_v; ++d) out[d] += p * v[d];
    }
    for (std::int64_t d = 0; d < r_.head_dim_v; ++d) out[d] = rounded(a_.q.dtype, out[d]);
  }

  const ForwardArguments& a_;
  Mask mask_;
  double softcap_;
  bool packed_q_;
  std::int64_t head_dim_;
  double scale_;
  std::int64_t num_heads_k_ = 0, batch_ = 0;
  Evaluation r_;
};

}  // namespace

Evaluation evaluate(const ForwardArguments& args, const ForwardOptions& options,
                    const std::function<void(double)>& progress) {
  return Evaluator(args, options).evaluate(progress);
}

}  // namespace onepass::verify
