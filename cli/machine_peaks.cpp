#include "cli/machine_peaks.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "cli/matrix_units.h"
#include "onepass/plan.h"

// Highway compiles what stands below, up to HWY_AFTER_NAMESPACE, once for every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cli/machine_peaks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace onepass::cli::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Sixteen independent sums hide the latency of a multiply-add: two units with four cycles need eight.
double multiply_add(long iterations, float* sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, sink[0]);
  const auto b = hn::Set(d, sink[1]);
  // Different starts, or a compiler would see that the sums are equal and keep one.
  const auto start = [&](float factor) { return hn::Set(d, factor * sink[0]); };
  auto s0 = start(1), s1 = start(2), s2 = start(3), s3 = start(4), s4 = start(5), s5 = start(6),
       s6 = start(7), s7 = start(8);
  auto t0 = start(9), t1 = start(10), t2 = start(11), t3 = start(12), t4 = start(13), t5 = start(14),
       t6 = start(15), t7 = start(16);
  for (long i = 0; i < iterations; ++i) {
    s0 = hn::MulAdd(s0, a, b);
    s1 = hn::MulAdd(s1, a, b);
    s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b);
    s4 = hn::MulAdd(s4, a, b);
    s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b);
    s7 = hn::MulAdd(s7, a, b);
    t0 = hn::MulAdd(t0, a, b);
    t1 = hn::MulAdd(t1, a, b);
    t2 = hn::MulAdd(t2, a, b);
    t3 = hn::MulAdd(t3, a, b);
    t4 = hn::MulAdd(t4, a, b);
    t5 = hn::MulAdd(t5, a, b);
    t6 = hn::MulAdd(t6, a, b);
    t7 = hn::MulAdd(t7, a, b);
  }
  s0 = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  t0 = hn::Add(hn::Add(hn::Add(t0, t1), hn::Add(t2, t3)), hn::Add(hn::Add(t4, t5), hn::Add(t6, t7)));
  sink[0] += 1e-30f * hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, t0)));
  return 16.0 * 2.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(iterations);
}

// `count` is a multiple of eight vectors of any width.
float sum(const float* data, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t step = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (std::size_t i = 0; i < count; i += 4 * step) {
    s0 = hn::Add(s0, hn::LoadU(d, data + i));
    s1 = hn::Add(s1, hn::LoadU(d, data + i + step));
    s2 = hn::Add(s2, hn::LoadU(d, data + i + 2 * step));
    s3 = hn::Add(s3, hn::LoadU(d, data + i + 3 * step));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

std::string name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace onepass::cli::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onepass::cli {
namespace {

HWY_EXPORT(multiply_add);
HWY_EXPORT(sum);
HWY_EXPORT(name);

constexpr int kRounds = 5;
constexpr double kRoundSeconds = 0.03;
constexpr std::size_t kBlockFloats = std::size_t{1} << 20;  // 4 MiB: a thread's share is a number of these

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Seconds that this thread has been running on a core.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Runs `work(iterations, sink)`, which returns FLOPs, on every thread; the best round's FLOP/s. Each thread
/// is measured by its own time on a core: processes that take turns there do not lower the machine's peak.
template <class Work>
double best_flops_per_second(int num_threads, Work work) {
  long iterations = 1000;
  float warm_up[2] = {0.5f, 0.25f};
  for (double seconds = 0; seconds < kRoundSeconds / 2;) {
    iterations *= 2;
    const auto begin = Clock::now();
    work(iterations, warm_up);
    seconds = seconds_since(begin);
  }
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    double flops_per_second = 0;
#pragma omp parallel num_threads(num_threads) reduction(+ : flops_per_second)
    {
      float sink[2] = {0.5f, 0.25f};
      const double begin = thread_seconds();
      const double flops = work(iterations, sink);
      flops_per_second += flops / (thread_seconds() - begin);
    }
    best = std::max(best, flops_per_second);
  }
  return best;
}

void measure_reads(MachinePeaks& peaks) {
  const DeviceInfo device = this_cpu();
  // Four times the last-level cache, and no more than an eighth of the memory or 1 GiB.
  const double wanted = std::min({4.0 * static_cast<double>(device.l2_bytes),
                                  static_cast<double>(device.memory_bytes) / 8, 1024.0 * 1024 * 1024});
  const auto blocks =
      std::max<std::ptrdiff_t>(16, static_cast<std::ptrdiff_t>(wanted / (4.0 * kBlockFloats)));
  const std::unique_ptr<float[]> data(new float[static_cast<std::size_t>(blocks) * kBlockFloats]);
  peaks.buffer_bytes = static_cast<double>(blocks) * kBlockFloats * sizeof(float);
#pragma omp parallel for num_threads(peaks.num_threads) schedule(static)
  for (std::ptrdiff_t b = 0; b < blocks; ++b) {  // first touch by the thread that reads
    std::fill_n(data.get() + b * static_cast<std::ptrdiff_t>(kBlockFloats), kBlockFloats, 1.0f);
  }
  float total = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
#pragma omp parallel for num_threads(peaks.num_threads) schedule(static) reduction(+ : total)
    for (std::ptrdiff_t b = 0; b < blocks; ++b) {
      total +=
          HWY_DYNAMIC_DISPATCH(sum)(data.get() + b * static_cast<std::ptrdiff_t>(kBlockFloats), kBlockFloats);
    }
    peaks.read_bytes_per_second =
        std::max(peaks.read_bytes_per_second, peaks.buffer_bytes / seconds_since(begin));
  }
  // Keeps the sums alive: they are positive.
  if (total <= 0) peaks.read_bytes_per_second = 0;
}

}  // namespace

MachinePeaks measure_peaks(int num_threads) {
  MachinePeaks peaks;
  peaks.num_threads = std::min(num_threads, this_cpu().num_processors);
  peaks.f32_flops_per_second = best_flops_per_second(peaks.num_threads, [](long iterations, float* sink) {
    return HWY_DYNAMIC_DISPATCH(multiply_add)(iterations, sink);
  });
  peaks.f32_unit = HWY_DYNAMIC_DISPATCH(name)() + " multiply-add";
  peaks.bf16_flops_per_second = peaks.f32_flops_per_second;
  peaks.bf16_unit = peaks.f32_unit;
  for (const MatrixUnit& unit : bf16_units()) {
    const double flops_per_second = best_flops_per_second(peaks.num_threads, unit.multiply_add);
    if (flops_per_second <= peaks.bf16_flops_per_second) continue;
    peaks.bf16_flops_per_second = flops_per_second;
    peaks.bf16_unit = unit.name;
  }
  measure_reads(peaks);
  return peaks;
}

}  // namespace onepass::cli
#endif  // HWY_ONCE
