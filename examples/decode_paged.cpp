// Decoding with a paged K/V cache, as a serving engine does: one new token per sequence and step. Pages are
// handed out in any order, sequences have lengths of their own, and one plan serves every step.
#include <onepass/attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 3, kHeadsQ = 8, kHeadsK = 2, kHeadDim = 64;
constexpr std::int64_t kPageSize = 16, kMaxPages = 4, kNumPages = kBatch * kMaxPages;
constexpr std::int64_t kMaxLength = kMaxPages * kPageSize;
constexpr int kSteps = 20;
constexpr std::size_t kAlignment = 64;

struct Cache {
  // Pools: [pages, page_size, heads, head_dim].
  std::vector<float> k = std::vector<float>(kNumPages * kPageSize * kHeadsK * kHeadDim, std::nanf(""));
  std::vector<float> v = k;  // unused slots may hold anything
  std::vector<std::int32_t> block_table = std::vector<std::int32_t>(kBatch * kMaxPages, -1);
  std::array<std::int32_t, kBatch> lengths = {0, 5, 37};
  std::vector<std::int32_t> free_pages;

  float* slot(std::vector<float>& pool, std::int64_t b, std::int64_t token) {
    const std::int64_t page = block_table[static_cast<std::size_t>(b * kMaxPages + token / kPageSize)];
    return &pool[static_cast<std::size_t>((page * kPageSize + token % kPageSize) * kHeadsK * kHeadDim)];
  }

  // Room for token `token` of sequence b: takes a page when the last one is full.
  void reserve(std::int64_t b, std::int64_t token) {
    std::int32_t& page = block_table[static_cast<std::size_t>(b * kMaxPages + token / kPageSize)];
    if (page >= 0) return;
    page = free_pages.back();
    free_pages.pop_back();
  }
};

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{kAlignment}); }
};

// Head h of sequence b by definition, over the cache's tokens.
double largest_difference(Cache& cache, const std::vector<float>& q, const std::vector<float>& out) {
  double worst = 0;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t h = 0; h < kHeadsQ; ++h) {
      const std::int64_t h_k = h / (kHeadsQ / kHeadsK), row = (b * kHeadsQ + h) * kHeadDim;
      double sum = 0;
      std::array<double, kHeadDim> expected{};
      for (std::int64_t j = 0; j < cache.lengths[static_cast<std::size_t>(b)]; ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < kHeadDim; ++d) {
          score +=
              double{q[static_cast<std::size_t>(row + d)]} * cache.slot(cache.k, b, j)[h_k * kHeadDim + d];
        }
        const double weight = std::exp(score / std::sqrt(double{kHeadDim}));
        sum += weight;
        for (std::int64_t d = 0; d < kHeadDim; ++d) {
          expected[static_cast<std::size_t>(d)] += weight * cache.slot(cache.v, b, j)[h_k * kHeadDim + d];
        }
      }
      for (std::int64_t d = 0; d < kHeadDim; ++d) {
        const double difference =
            std::abs(out[static_cast<std::size_t>(row + d)] - expected[static_cast<std::size_t>(d)] / sum);
        if (!(difference <= worst)) worst = difference;  // a NaN stays
      }
    }
  }
  return worst;
}

double decode() {
  std::mt19937 generator(std::random_device{}());
  std::normal_distribution<float> normal(0.5f, 1.0f);
  const auto fill = [&](float* values, std::int64_t count) {
    std::generate_n(values, count, [&] { return normal(generator); });
  };

  Cache cache;
  for (std::int32_t page = 0; page < kNumPages; ++page) cache.free_pages.push_back(page);
  std::shuffle(cache.free_pages.begin(), cache.free_pages.end(), generator);
  const auto append = [&](std::int64_t b, std::int64_t token) {
    cache.reserve(b, token);
    fill(cache.slot(cache.k, b, token), kHeadsK * kHeadDim);
    fill(cache.slot(cache.v, b, token), kHeadsK * kHeadDim);
  };
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t token = 0; token < cache.lengths[static_cast<std::size_t>(b)]; ++token)
      append(b, token);
  }

  std::vector<float> q(kBatch * kHeadsQ * kHeadDim), out(q.size());
  using onepass::DType;
  onepass::ForwardArguments args;
  args.q = onepass::make_view(q.data(), DType::F32, {kBatch, 1, kHeadsQ, kHeadDim});
  args.k = onepass::make_view(cache.k.data(), DType::F32, {kNumPages, kPageSize, kHeadsK, kHeadDim});
  args.v = onepass::make_view(cache.v.data(), DType::F32, {kNumPages, kPageSize, kHeadsK, kHeadDim});
  args.out = onepass::make_view(out.data(), DType::F32, {kBatch, 1, kHeadsQ, kHeadDim});
  args.block_table = onepass::make_view(cache.block_table.data(), DType::I32, {kBatch, kMaxPages});
  args.seqused_k = onepass::make_view(cache.lengths.data(), DType::I32, {kBatch});

  // Planned once, for any length up to max_seqlen_k; its workspace is kept.
  onepass::ForwardOptions options;
  options.causal = onepass::Causal::BottomRight;
  options.max_seqlen_k = kMaxLength;
  const onepass::Plan plan = onepass::plan(args, options);
  const std::size_t bytes = plan.workspace_bytes();
  const std::unique_ptr<std::byte[], AlignedDelete> workspace(
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlignment})));
  std::printf("%s", plan.explain().c_str());

  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    fill(q.data(), static_cast<std::int64_t>(q.size()));
    for (std::int64_t b = 0; b < kBatch; ++b) append(b, cache.lengths[static_cast<std::size_t>(b)]++);
    onepass::run(plan, args, {workspace.get(), bytes});
    const double difference = largest_difference(cache, q, out);
    if (!(difference <= worst)) worst = difference;
  }
  std::printf("\nafter %d steps, lengths %d, %d, %d: largest difference from the definition %.2e\n", kSteps,
              cache.lengths[0], cache.lengths[1], cache.lengths[2], worst);
  return worst;
}

}  // namespace

int main() {
  try {
    return decode() <= 1e-5 ? 0 : 1;
  } catch (const onepass::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
