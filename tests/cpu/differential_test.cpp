// Random problems over the whole feature space against float64, on every backend and instruction set in turn.
//
// ONEPASS_TEST_SEED=<N> chooses other problems; a failure prints the command line that repeats it.
// ONEPASS_TEST_TARGETS=cuda gives all 2,112 to the GPU: problems that its planner declines are drawn again.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/cpu/sizes.h"
#include "tests/cpu/target.h"
#include "verify/check.h"
#include "verify/random.h"
#include "verify/random_case.h"

namespace onepass {
namespace {

constexpr int kShards = 32;
constexpr int kProblemsPerShard = static_cast<int>(full_or_sanitized(66, 10));

std::int64_t base_seed() {
  const char* text = std::getenv("ONEPASS_TEST_SEED");
  return text != nullptr ? std::strtoll(text, nullptr, 10) : 1;
}

/// Head dims of the GPU's problems. Each costs a second of compilation for every variant of its kernel, so
/// there are a dozen: those of known models, and others with every seed.
std::vector<verify::HeadDims> gpu_head_dims() {
  std::vector<verify::HeadDims> dims = {{64, 64}, {80, 80}, {128, 128}, {192, 128}, {256, 256}, {576, 512}};
  verify::Random random{base_seed()};
  for (int n = 0; n < 5; ++n) dims.push_back({1 + random.below(72), 1 + random.below(72)});
  dims.push_back({1 + random.below(512), 1 + random.below(512)});
  return dims;
}

/// Drawn again until the GPU's planner takes it.
Case random_gpu_case(verify::Random& random) {
  static const std::vector<verify::HeadDims> dims = gpu_head_dims();
  const auto draw = [&] { return verify::random_case(random, 2e6, dims); };
  Case c = draw();
  while (!gpu_takes(c)) c = draw();
  return c;
}

class differential : public ::testing::TestWithParam<int> {};

TEST_P(differential, random_problems_agree_with_float64) {
  // Backends and instruction sets; each problem has a dtype of its own.
  const std::vector<Target> all = targets({DType::F16});
  if (all.empty()) GTEST_SKIP() << no_target_reason();
  int num_on_gpu = 0;
  for (int n = 0; n < kProblemsPerShard; ++n) {
    verify::Random random{base_seed(), GetParam(), n};
    const Target& target = all[static_cast<std::size_t>(GetParam() * kProblemsPerShard + n) % all.size()];
    const Case c = target.on_gpu() ? random_gpu_case(random) : verify::random_case(random);
    const verify::CheckHow how = {target.backend, static_cast<int>(1 + random.below(4)),
                                  target.instruction_set};
    const verify::CheckReport report = verify::check_case(c, how);
    EXPECT_TRUE(report.passed) << report.text();
    num_on_gpu += target.on_gpu() ? 1 : 0;
  }
  std::printf("%d problems, %d of them on the GPU\n", kProblemsPerShard, num_on_gpu);
}

INSTANTIATE_TEST_SUITE_P(shards, differential, ::testing::Range(0, kShards));

}  // namespace
}  // namespace onepass
