#include "verify/oracle.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "verify/call_reader.h"

namespace onepass::verify {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class Evaluator {
 public:
  Evaluator(const ForwardArguments& args, const ForwardOptions& options) : call_(args, options) {
    r_.num_heads = call_.num_heads_q;
    r_.head_dim_v = call_.head_dim_v;
    r_.num_rows = call_.num_rows_q;
    r_.owners.resize(static_cast<std::size_t>(r_.num_rows));
    const auto cells = static_cast<std::size_t>(r_.num_rows * r_.num_heads);
    r_.out.assign(cells * static_cast<std::size_t>(r_.head_dim_v), 0.0);
    r_.plain_out.assign(r_.out.size(), 0.0f);
    r_.lse.assign(cells, -kInf);
    r_.sees_keys.assign(cells, 0);
  }

  Evaluation evaluate(const std::function<void(double)>& progress) {
    std::vector<Lengths> sequences;
    for (std::int64_t b = 0; b < call_.batch; ++b) sequences.push_back(lengths(b));
    const std::int64_t num_items = call_.batch * call_.num_heads_k;
    const std::int64_t group = call_.group();
    std::atomic<std::int64_t> done = 0;
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t item = 0; item < num_items; ++item) {
      const std::int64_t b = item / call_.num_heads_k, hk = item % call_.num_heads_k;
      const Lengths& s = sequences[static_cast<std::size_t>(b)];
      const Keys keys = call_.load_keys(b, hk, s.seqlen_k);
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
    const Lengths s = call_.lengths(b);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      r_.owners[static_cast<std::size_t>(s.first_row + i)] = {b, i, s.seqlen_q, s.seqlen_k};
    }
    return s;
  }

  void row(std::int64_t b, std::int64_t h, std::int64_t i, const Lengths& s, const Keys& keys) {
    const ForwardArguments& args = call_.a;
    const std::vector<double> q = call_.query_row(args.q, b, s, h, i);
    const std::vector<float> plain_q(q.begin(), q.end());
    std::vector<std::int64_t> allowed;
    std::vector<double> scores;
    std::vector<float> plain_scores;  // S, materialised in q's dtype
    for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
      if (!call_.mask.allows(i, j, s.seqlen_q, s.seqlen_k)) continue;
      allowed.push_back(j);
      const double dot = dot_product(q.data(), keys.k.data() + j * call_.head_dim, call_.head_dim);
      const float plain_dot =
          dot_product(plain_q.data(), keys.plain_k.data() + j * call_.head_dim, call_.head_dim);
      scores.push_back(call_.score(dot, b, h, i, j, s));
      const double plain = call_.score(static_cast<double>(plain_dot), b, h, i, j, s);
      plain_scores.push_back(rounded(call_.a.q.dtype, static_cast<float>(plain)));
    }
    const auto cell = static_cast<std::size_t>((s.first_row + i) * r_.num_heads + h);
    r_.sees_keys[cell] = !allowed.empty();
    const double sink = args.sinks.present() ? value(args.sinks, {h}) : -kInf;
    double* out = r_.out.data() + static_cast<std::int64_t>(cell) * r_.head_dim_v;
    r_.lse[cell] = softmax_times_v(allowed, scores, sink, keys, out);
    plain_softmax_times_v(allowed, plain_scores, sink, keys, r_.plain_out.data() + (out - r_.out.data()));
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
      const float p = rounded(call_.a.q.dtype, std::exp(scores[n] - m) / l);
      const float* v = keys.plain_v.data() + allowed[n] * r_.head_dim_v;
      for (std::int64_t d = 0; d < r_.head_dim_v; ++d) out[d] += p * v[d];
    }
    for (std::int64_t d = 0; d < r_.head_dim_v; ++d) out[d] = rounded(call_.a.q.dtype, out[d]);
  }

  const CallReader call_;
  Evaluation r_;
};

}  // namespace

Evaluation evaluate(const ForwardArguments& args, const ForwardOptions& options,
                    const std::function<void(double)>& progress) {
  return Evaluator(args, options).evaluate(progress);
}

}  // namespace onepass::verify
