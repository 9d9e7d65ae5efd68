// Random problems over the whole feature space against float64, on every backend and instruction set in turn.
//
// ONEPASS_TEST_SEED=<N> chooses other problems; a failure prints the command line that repeats it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/cpu/target.h"
#include "verify/check.h"
#include "verify/random.h"
#include "verify/random_case.h"

namespace onepass {
namespace {

constexpr int kShards = 32;
constexpr int kProblemsPerShard = 66;

std::int64_t base_seed() {
  const char* text = std::getenv("ONEPASS_TEST_SEED");
  return text != nullptr ? std::strtoll(text, nullptr, 10) : 1;
}

class differential : public ::testing::TestWithParam<int> {};

TEST_P(differential, random_problems_agree_with_float64) {
  const std::vector<std::string> sets = cpu::simd_instruction_sets();
  for (int n = 0; n < kProblemsPerShard; ++n) {
    verify::Random random{base_seed(), GetParam(), n};
    const Case c = verify::random_case(random);
    verify::CheckHow how;
    how.num_threads = static_cast<int>(1 + random.below(4));
    // One in six on the reference, the others on one instruction set after another.
    how.backend = n % 6 == 0 ? Backend::Reference : Backend::Cpu;
    if (how.backend == Backend::Cpu) {
      how.instruction_set = sets[static_cast<std::size_t>(GetParam() * kProblemsPerShard + n) % sets.size()];
    }
    const verify::CheckReport report = verify::check_case(c, how);
    EXPECT_TRUE(report.passed) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(shards, differential, ::testing::Range(0, kShards));

}  // namespace
}  // namespace onepass
