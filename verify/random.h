// Random numbers that are the same on every machine and compiler: integer arithmetic, no library
// distribution.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace onepass::verify {

/// splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
class Random {
 public:
  /// One stream per key, so that a value depends on its place and not on what was drawn before.
  explicit Random(std::initializer_list<std::int64_t> key) {
    for (const std::int64_t part : key)
      state_ = next() ^ (static_cast<std::uint64_t>(part) * 0xd1342543de82ef95u);
  }

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// 0 to n - 1; n > 0.
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  bool chance(int percent) { return below(100) < percent; }
  /// [0, 1)
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Mean 0, deviation 1: a sum of eight uniform numbers, which is near normal and exact in binary.
  float normal() {
    std::uint64_t sum = 0;
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t bits = next();
      sum += (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
    }
    constexpr double kMean = 8 * 65535 / 2.0;
    constexpr double kDeviation = 53509.98;  // sqrt(8 / 12) * 65536
    return static_cast<float>((static_cast<double>(sum) - kMean) / kDeviation);
  }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace onepass::verify
