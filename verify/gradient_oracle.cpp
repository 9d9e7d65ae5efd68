#include "verify/gradient_oracle.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "verify/call_reader.h"

namespace onepass::verify {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::int64_t last_extent(const TensorView& view) {
  return view.shape[static_cast<std::size_t>(view.rank - 1)];
}

/// Sums of one gradient: exact and plain.
struct Sums {
  std::vector<double> exact;
  std::vector<float> plain;

  explicit Sums(std::int64_t count) : exact(static_cast<std::size_t>(count)), plain(exact.size()) {}

  void add(std::int64_t at, double x, float plain_x) {
    exact[static_cast<std::size_t>(at)] += x;
    plain[static_cast<std::size_t>(at)] += plain_x;
  }
};

/// A query row and the pairs that its mask allows.
struct Row {
  std::vector<double> q, out, dout;
  std::vector<float> plain_q, plain_dout;
  std::vector<std::int64_t> keys;
  std::vector<double> p, ds, slope;
  std::vector<float> plain_p, plain_ds;
};

class GradientEvaluator {
 public:
  GradientEvaluator(const BackwardArguments& args, const ForwardOptions& options)
      : b_(args), call_(args.forward, options), dtype_(args.forward.q.dtype) {
    prepare(r_.dq, args.dq, last_extent(args.dq));
    prepare(r_.dk, args.dk, last_extent(args.dk));
    prepare(r_.dv, args.dv, last_extent(args.dv));
    prepare(r_.dsinks, args.dsinks, 1);
    prepare(r_.dbias, args.dbias, 1);
  }

  GradientEvaluation evaluate(const std::function<void(double)>& progress) {
    const std::int64_t num_items = call_.batch * call_.num_heads_k, group = call_.group();
    Sums sinks(call_.batch * call_.num_heads_q);
    Sums bias(static_cast<std::int64_t>(r_.dbias.exact.size()));
    std::atomic<std::int64_t> done = 0;
    const bool shares_bias = args().bias.present();  // several items may add to one element
#pragma omp parallel for schedule(dynamic) if (!shares_bias)
    for (std::int64_t item = 0; item < num_items; ++item) {
      const std::int64_t b = item / call_.num_heads_k, hk = item % call_.num_heads_k;
      const Lengths s = call_.lengths(b);
      const Keys keys = call_.load_keys(b, hk, s.seqlen_k);
      Sums dk(s.seqlen_k * call_.head_dim), dv(s.seqlen_k * call_.head_dim_v);
      for (std::int64_t h = hk * group; h < (hk + 1) * group; ++h) {
        for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
          const Row row = make_row(b, h, i, s, keys, sinks);
          add_keys(row, s, hk, dk, dv);
          store_query(row, h, i, s, keys);
          if (!r_.dbias.exact.empty()) add_bias(row, b, h, i, bias);
        }
      }
      const std::int64_t first = s.first_key * call_.num_heads_k + hk;
      store_keys(r_.dk, dk, first, s.seqlen_k, call_.scale);
      store_keys(r_.dv, dv, first, s.seqlen_k, 1.0);
      const std::int64_t count = ++done;
      if (progress) {
#pragma omp critical(onepass_verify_progress)
        progress(static_cast<double>(count) / static_cast<double>(num_items));
      }
    }
    for (std::size_t n = 0; n < bias.exact.size(); ++n) {
      r_.dbias.exact[n] = bias.exact[n];
      r_.dbias.plain[n] = rounded(b_.dbias.dtype, bias.plain[n]);
    }
    for (std::size_t h = 0; h < r_.dsinks.exact.size(); ++h) {
      for (std::int64_t b = 0; b < call_.batch; ++b) {
        const auto n = static_cast<std::size_t>(b * call_.num_heads_q) + h;
        r_.dsinks.exact[h] += sinks.exact[n];
        r_.dsinks.plain[h] += sinks.plain[n];
      }
      r_.dsinks.counts[h] = 1;
    }
    return std::move(r_);
  }

 private:
  const ForwardArguments& args() const { return call_.a; }

  static void prepare(EvaluatedGradient& gradient, const TensorView& view, std::int64_t width) {
    const auto count = static_cast<std::size_t>(view.num_elements());
    gradient.exact.assign(count, 0.0);
    gradient.plain.assign(count, 0.0f);
    gradient.width = width;
    gradient.counts.assign(count / static_cast<std::size_t>(width), 0);
  }

  Row make_row(std::int64_t b, std::int64_t h, std::int64_t i, const Lengths& s, const Keys& keys,
               Sums& sinks) const {
    Row r;
    r.q = call_.query_row(args().q, b, s, h, i);
    r.out = call_.query_row(args().out, b, s, h, i);
    r.dout = call_.query_row(b_.dout, b, s, h, i);
    r.plain_q.assign(r.q.begin(), r.q.end());
    r.plain_dout.assign(r.dout.begin(), r.dout.end());
    const double lse = call_.statistic(args().softmax_lse, b, s, h, i);
    const double dlse = b_.dlse.present() ? call_.statistic(b_.dlse, b, s, h, i) : 0.0;
    if (lse == -kInf) return r;  // no key of any weight
    const std::int64_t d = call_.head_dim, dv = call_.head_dim_v;
    const double delta = dot_product(r.dout.data(), r.out.data(), dv) - dlse;
    const double sink = args().sinks.present() ? value(args().sinks, {h}) : -kInf;
    std::vector<float> plain_s, plain_dp;
    for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
      if (!call_.mask.allows(i, j, s.seqlen_q, s.seqlen_k)) continue;
      r.keys.push_back(j);
      double slope = 1.0;
      const double score =
          call_.score(dot_product(r.q.data(), keys.k.data() + j * d, d), b, h, i, j, s, &slope);
      r.slope.push_back(slope);
      r.p.push_back(std::exp(score - lse));
      r.ds.push_back(r.p.back() * (dot_product(r.dout.data(), keys.v.data() + j * dv, dv) - delta));
      const float dot = dot_product(r.plain_q.data(), keys.plain_k.data() + j * d, d);
      plain_s.push_back(
          rounded(dtype_, static_cast<float>(call_.score(static_cast<double>(dot), b, h, i, j, s))));
      plain_dp.push_back(rounded(dtype_, dot_product(r.plain_dout.data(), keys.plain_v.data() + j * dv, dv)));
    }
    const float plain_delta =
        plain_row(plain_s, plain_dp, static_cast<float>(sink), static_cast<float>(dlse), r);
    if (!r_.dsinks.exact.empty()) {
      const std::int64_t cell = b * call_.num_heads_q + h;
      sinks.add(cell, -std::exp(sink - lse) * delta,
                -std::exp(static_cast<float>(sink) - static_cast<float>(lse)) * plain_delta);
    }
    return r;
  }

  /// P and dS of the plain evaluation: softmax of the stored S, and its derivative from the stored P and dP.
  /// Returns delta as it finds it.
  float plain_row(const std::vector<float>& s, const std::vector<float>& dp, float sink, float dlse,
                  Row& r) const {
    float m = sink;
    for (const float x : s) m = std::max(m, x);
    float l = std::exp(sink - m);
    for (const float x : s) l += std::exp(x - m);
    float delta = -dlse;
    for (std::size_t n = 0; n < s.size(); ++n) {
      r.plain_p.push_back(rounded(dtype_, std::exp(s[n] - m) / l));
      delta += r.plain_p[n] * dp[n];
    }
    for (std::size_t n = 0; n < s.size(); ++n)
      r.plain_ds.push_back(rounded(dtype_, r.plain_p[n] * (dp[n] - delta)));
    return delta;
  }

  void add_keys(const Row& r, const Lengths& s, std::int64_t hk, Sums& dk, Sums& dv) {
    for (std::size_t n = 0; n < r.keys.size(); ++n) {
      const std::int64_t j = r.keys[n];
      const auto cell = static_cast<std::size_t>((s.first_key + j) * call_.num_heads_k + hk);
      ++r_.dk.counts[cell];
      ++r_.dv.counts[cell];
      const double slope = r.slope[n];
      for (std::size_t d = 0; d < r.q.size(); ++d) {
        dk.add(j * call_.head_dim + static_cast<std::int64_t>(d), r.ds[n] * slope * r.q[d],
               r.plain_ds[n] * static_cast<float>(slope) * r.plain_q[d]);
      }
      for (std::size_t d = 0; d < r.dout.size(); ++d) {
        dv.add(j * call_.head_dim_v + static_cast<std::int64_t>(d), r.p[n] * r.dout[d],
               r.plain_p[n] * r.plain_dout[d]);
      }
    }
  }

  /// Rows of one head, whose first is row `first` of the tensor.
  void store_keys(EvaluatedGradient& to, const Sums& sums, std::int64_t first, std::int64_t num_rows,
                  double factor) const {
    for (std::int64_t j = 0; j < num_rows; ++j) {
      const std::int64_t row = first + j * call_.num_heads_k;
      for (std::int64_t d = 0; d < to.width; ++d) {
        const auto at = static_cast<std::size_t>(row * to.width + d);
        const auto n = static_cast<std::size_t>(j * to.width + d);
        to.exact[at] = factor * sums.exact[n];
        to.plain[at] = rounded(dtype_, static_cast<float>(factor) * sums.plain[n]);
      }
    }
  }

  void store_query(const Row& r, std::int64_t h, std::int64_t i, const Lengths& s, const Keys& keys) {
    const std::int64_t cell = (s.first_row + i) * call_.num_heads_q + h;
    r_.dq.counts[static_cast<std::size_t>(cell)] = static_cast<std::uint32_t>(r.keys.size());
    Sums dq(call_.head_dim);
    for (std::size_t n = 0; n < r.keys.size(); ++n) {
      for (std::int64_t d = 0; d < call_.head_dim; ++d) {
        const auto k = static_cast<std::size_t>(r.keys[n] * call_.head_dim + d);
        dq.add(d, r.ds[n] * r.slope[n] * keys.k[k],
               r.plain_ds[n] * static_cast<float>(r.slope[n]) * keys.plain_k[k]);
      }
    }
    for (std::int64_t d = 0; d < call_.head_dim; ++d) {
      const auto at = static_cast<std::size_t>(cell * call_.head_dim + d), n = static_cast<std::size_t>(d);
      r_.dq.exact[at] = call_.scale * dq.exact[n];
      r_.dq.plain[at] = rounded(dtype_, static_cast<float>(call_.scale) * dq.plain[n]);
    }
  }

  void add_bias(const Row& r, std::int64_t b, std::int64_t h, std::int64_t i, Sums& bias) {
    const auto& shape = b_.dbias.shape;
    const std::int64_t row = ((shape[0] == 1 ? 0 : b) * shape[1] + (shape[1] == 1 ? 0 : h)) * shape[2] + i;
    for (std::size_t n = 0; n < r.keys.size(); ++n) {
      const std::int64_t at = row * shape[3] + r.keys[n];
      bias.add(at, r.ds[n], r.plain_ds[n]);
      ++r_.dbias.counts[static_cast<std::size_t>(at)];
    }
  }

  const BackwardArguments& b_;
  const CallReader call_;
  const DType dtype_;
  GradientEvaluation r_;
};

}  // namespace

GradientEvaluation evaluate_gradients(const BackwardArguments& args, const ForwardOptions& options,
                                      const std::function<void(double)>& progress) {
  return GradientEvaluator(args, options).evaluate(progress);
}

}  // namespace onepass::verify
