// f32 to the 8-bit types of a cache, against a search through all their values in float64.
#include "backends/cuda/kernels/common/round_to_bytes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "support/float_types.h"

namespace onepass {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Format {
  DType dtype;
  int largest;  // finite value, as bits
  unsigned char (*round)(float);
};
constexpr Format kFormats[] = {{DType::F8E4M3, 0x7e, cuda::round_to_e4m3},
                               {DType::F8E5M2, 0x7b, cuda::round_to_e5m2}};

double value_of(const Format& format, int bits) {
  const auto byte = static_cast<std::uint8_t>(bits);
  return static_cast<double>(load_float(&byte, format.dtype, 0));
}

int nearest(const Format& format, float x) {
  const double magnitude = std::abs(static_cast<double>(x));
  const int sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return 0x7f;
  if (magnitude >= value_of(format, format.largest)) return sign | format.largest;
  int below = 0;
  while (value_of(format, below + 1) <= magnitude) ++below;
  const double down = magnitude - value_of(format, below), up = value_of(format, below + 1) - magnitude;
  return sign | (down < up || (down == up && below % 2 == 0) ? below : below + 1);
}

void expect_nearest(const Format& format, float x) {
  ASSERT_EQ(static_cast<int>(format.round(x)), nearest(format, x)) << dtype_name(format.dtype) << " of " << x;
}

TEST(round_to_bytes, every_value_every_tie_and_their_neighbours_round_to_nearest_even) {
  for (const Format& format : kFormats) {
    for (int bits = 0; bits < format.largest; ++bits) {
      const double a = value_of(format, bits), b = value_of(format, bits + 1);
      for (const double exact : {a, (a + b) / 2, b}) {
        const auto x = static_cast<float>(exact);
        for (const float y : {x, std::nextafter(x, kInf), std::nextafter(x, -kInf)}) {
          ASSERT_NO_FATAL_FAILURE(expect_nearest(format, y));
          ASSERT_NO_FATAL_FAILURE(expect_nearest(format, -y));
        }
      }
    }
  }
}

TEST(round_to_bytes, bit_patterns_at_random_round_to_nearest_even) {
  std::mt19937 random(1);
  for (int n = 0; n < 200000; ++n) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    for (const Format& format : kFormats) ASSERT_NO_FATAL_FAILURE(expect_nearest(format, x));
  }
}

TEST(round_to_bytes, what_is_past_the_largest_value_becomes_that_and_nan_stays_one) {
  for (const Format& format : kFormats) {
    for (const float x : {1e30f, kInf, std::numeric_limits<float>::max()}) {
      EXPECT_EQ(format.round(x), format.largest);
      EXPECT_EQ(format.round(-x), 0x80 | format.largest);
    }
    for (const float x : {kInf - kInf, -(kInf - kInf)}) EXPECT_EQ(format.round(x), 0x7f);
  }
  EXPECT_EQ(cuda::round_to_e4m3(464), 0x7e) << "halfway to the NaN";
  EXPECT_EQ(cuda::round_to_e4m3(-0.0f), 0x80);
}

TEST(round_to_bytes, integers_round_to_nearest_even_from_minus_128_to_127) {
  for (int n = -400; n <= 400; ++n) {
    const float x = static_cast<float>(n) / 2;
    for (const float y : {x, std::nextafter(x, kInf), std::nextafter(x, -kInf)}) {
      const float want = std::fmin(std::fmax(std::nearbyint(y), -128.0f), 127.0f);
      ASSERT_EQ(static_cast<std::int8_t>(cuda::round_to_i8(y)), want) << y;
    }
  }
  EXPECT_EQ(static_cast<std::int8_t>(cuda::round_to_i8(kInf)), 127);
  EXPECT_EQ(static_cast<std::int8_t>(cuda::round_to_i8(-1e30f)), -128);
  EXPECT_EQ(cuda::round_to_i8(kInf - kInf), 0);
}

}  // namespace
}  // namespace onepass
