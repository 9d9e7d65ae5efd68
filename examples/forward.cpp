// Attention over a prompt: causal, 8 query heads that share 2 key/value heads, checked against plain loops.
#include <onepass/attention.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 2, kSeqlen = 100, kHeadsQ = 8, kHeadsK = 2, kHeadDim = 64;

std::vector<float> random_values(std::int64_t count, std::mt19937& generator) {
  std::normal_distribution<float> distribution(0.5f, 1.0f);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

// Element [b, s, h, d] of a row-major [batch, seqlen, heads, head_dim] tensor.
double at(const std::vector<float>& x, std::int64_t heads, std::int64_t b, std::int64_t s, std::int64_t h,
          std::int64_t d) {
  return x[static_cast<std::size_t>(((b * kSeqlen + s) * heads + h) * kHeadDim + d)];
}

// The same by definition, for one query row: every score kept, softmax, weighted sum.
std::vector<double> by_definition(const std::vector<float>& q, const std::vector<float>& k,
                                  const std::vector<float>& v, std::int64_t b, std::int64_t i,
                                  std::int64_t h) {
  const std::int64_t h_k = h / (kHeadsQ / kHeadsK);
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j <= i; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < kHeadDim; ++d)
      score += at(q, kHeadsQ, b, i, h, d) * at(k, kHeadsK, b, j, h_k, d);
    weights.push_back(score / std::sqrt(static_cast<double>(kHeadDim)));
    largest = std::max(largest, weights.back());
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  std::vector<double> out(kHeadDim, 0.0);
  for (std::int64_t j = 0; j <= i; ++j) {
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      out[static_cast<std::size_t>(d)] +=
          weights[static_cast<std::size_t>(j)] / sum * at(v, kHeadsK, b, j, h_k, d);
    }
  }
  return out;
}

}  // namespace

int main() {
  std::mt19937 generator(std::random_device{}());
  const auto q = random_values(kBatch * kSeqlen * kHeadsQ * kHeadDim, generator);
  const auto k = random_values(kBatch * kSeqlen * kHeadsK * kHeadDim, generator);
  const auto v = random_values(kBatch * kSeqlen * kHeadsK * kHeadDim, generator);
  std::vector<float> out(q.size());

  onepass::ForwardArguments args;
  args.q = onepass::make_view(q.data(), onepass::DType::F32, {kBatch, kSeqlen, kHeadsQ, kHeadDim});
  args.k = onepass::make_view(k.data(), onepass::DType::F32, {kBatch, kSeqlen, kHeadsK, kHeadDim});
  args.v = onepass::make_view(v.data(), onepass::DType::F32, {kBatch, kSeqlen, kHeadsK, kHeadDim});
  args.out = onepass::make_view(out.data(), onepass::DType::F32, {kBatch, kSeqlen, kHeadsQ, kHeadDim});
  onepass::ForwardOptions options;
  options.causal = onepass::Causal::BottomRight;
  try {
    onepass::forward(args, options);
  } catch (const onepass::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }

  double worst = 0;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t i = 0; i < kSeqlen; ++i) {
      for (std::int64_t h = 0; h < kHeadsQ; ++h) {
        const std::vector<double> expected = by_definition(q, k, v, b, i, h);
        for (std::int64_t d = 0; d < kHeadDim; ++d) {
          const double difference =
              std::abs(at(out, kHeadsQ, b, i, h, d) - expected[static_cast<std::size_t>(d)]);
          if (!(difference <= worst)) worst = difference;  // a NaN stays
        }
      }
    }
  }
  std::printf("onepass %s\n", onepass::version());
  std::printf("out[1, 99, 7, 0..3] = %.4f %.4f %.4f %.4f\n", at(out, kHeadsQ, 1, 99, 7, 0),
              at(out, kHeadsQ, 1, 99, 7, 1), at(out, kHeadsQ, 1, 99, 7, 2), at(out, kHeadsQ, 1, 99, 7, 3));
  std::printf("largest difference from the definition: %.2e\n", worst);
  return worst <= 1e-5 ? 0 : 1;
}
