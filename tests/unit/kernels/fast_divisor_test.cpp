#include "backends/cuda/kernels/common/fast_divisor.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace onepass::cuda {
namespace {

constexpr int kMost = std::numeric_limits<int>::max();

void expect_exact(int n, int divisor) {
  const FastDivisor fast = fast_divisor(divisor);
  const int quotient = fast.quotient(n);
  ASSERT_EQ(quotient, n / divisor) << n << " / " << divisor;
  ASSERT_EQ(fast.remainder(n, quotient), n % divisor) << n << " % " << divisor;
}

TEST(fast_divisor, agrees_with_division_around_multiples_of_every_small_divisor) {
  for (int divisor = 1; divisor <= 1024; ++divisor) {
    for (const int multiple : {0, 1, 2, 3, 1000, kMost / divisor}) {
      expect_exact(multiple * divisor, divisor);
      if (multiple > 0) expect_exact(multiple * divisor - 1, divisor);
    }
    expect_exact(kMost, divisor);
  }
}

TEST(fast_divisor, agrees_with_division_at_the_largest_numbers) {
  for (const int divisor : {1, 2, 3, 1 << 30, (1 << 30) + 1, kMost - 1, kMost}) {
    for (const int n : {0, 1, (1 << 30) - 1, 1 << 30, kMost - 1, kMost}) expect_exact(n, divisor);
  }
}

TEST(fast_divisor, agrees_with_division_of_random_numbers) {
  std::mt19937 random(7);
  for (int i = 0; i < 100000; ++i) {
    const int shift = static_cast<int>(random() % 31);
    expect_exact(static_cast<int>(random() >> 1), 1 + (static_cast<int>(random() >> 1) >> shift) % kMost);
  }
}

TEST(fast_divisor, of_zero_is_for_work_that_never_divides) { EXPECT_EQ(fast_divisor(0).divisor, 0); }

}  // namespace
}  // namespace onepass::cuda
