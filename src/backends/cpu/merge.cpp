// cpu/merge.cpp - the union of two partial attention results over disjoint key sets
//
// Problem    lse = logaddexp(lse_a, lse_b), out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b, row by row
// Numerics   weights in float64; a side with lse = -inf holds nothing: it is never read, the other
//            side is copied
// Sources    spec section 3; the merge of Milakov and Gimelshein 2018 (arXiv:1805.02867), section 3.1
#include "backends/cpu/merge.h"

#include <cmath>
#include <limits>

#include "support/float_types.h"

namespace onepass::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Rank 3 (packed) and rank 4 (dense) as one shape: [batch, row, head, dim], batch 1 when packed.
struct Rows {
  const TensorView& out;
  const TensorView& lse;
  std::size_t first;  // index of the row dimension in out

  Rows(const TensorView& o, const TensorView& l) : out(o), lse(l), first(o.rank == 4 ? 1 : 0) {}

  std::int64_t out_offset(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return (first == 1 ? b * out.strides[0] : 0) + i * out.strides[first] + h * out.strides[first + 1];
  }
  std::int64_t lse_offset(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return (first == 1 ? b * lse.strides[0] : 0) + h * lse.strides[first] + i * lse.strides[first + 1];
  }
  std::int64_t dim_stride() const { return out.strides[first + 2]; }
  float lse_at(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return static_cast<const float*>(lse.data)[lse_offset(b, i, h)];
  }
};

}  // namespace

void merge(const MergeArguments& args, int num_threads) {
  const Rows a(args.out_a, args.lse_a), b(args.out_b, args.lse_b), out(args.out, args.lse);
  const std::int64_t batch = out.first == 1 ? args.out.shape[0] : 1;
  const std::int64_t seqlen_q = args.out.shape[out.first];
  const std::int64_t num_heads = args.out.shape[out.first + 1];
  const std::int64_t head_dim_v = args.out.shape[out.first + 2];
  const bool store_lse = args.lse.present();

#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (std::int64_t row = 0; row < batch * seqlen_q; ++row) {
    const std::int64_t n = row / seqlen_q, i = row % seqlen_q;
    for (std::int64_t h = 0; h < num_heads; ++h) {
      const float lse_a = a.lse_at(n, i, h), lse_b = b.lse_at(n, i, h);
      const double larger = std::fmax(lse_a, lse_b), smaller = std::fmin(lse_a, lse_b);
      const bool has_nan = std::isnan(lse_a) || std::isnan(lse_b);
      const double lse = has_nan            ? std::numeric_limits<double>::quiet_NaN()
                         : smaller == -kInf ? larger
                                            : larger + std::log1p(std::exp(smaller - larger));
      const double weight_a = std::exp(lse_a - lse), weight_b = std::exp(lse_b - lse);
      for (std::int64_t d = 0; d < head_dim_v; ++d) {
        const std::int64_t offset_a = a.out_offset(n, i, h) + d * a.dim_stride();
        const std::int64_t offset_b = b.out_offset(n, i, h) + d * b.dim_stride();
        float value = 0.0f;
        if (lse_a == -kInf && lse_b == -kInf) {
          value = 0.0f;
        } else if (lse_b == -kInf) {
          value = load_float(args.out_a.data, args.out_a.dtype, offset_a);
        } else if (lse_a == -kInf) {
          value = load_float(args.out_b.data, args.out_b.dtype, offset_b);
        } else {
          value = static_cast<float>(weight_a * load_float(args.out_a.data, args.out_a.dtype, offset_a) +
                                     weight_b * load_float(args.out_b.data, args.out_b.dtype, offset_b));
        }
        store_float(args.out.data, args.out.dtype, out.out_offset(n, i, h) + d * out.dim_stride(), value);
      }
      if (store_lse) {
        static_cast<float*>(args.lse.data)[out.lse_offset(n, i, h)] = static_cast<float>(lse);
      }
    }
  }
}

}  // namespace onepass::cpu
