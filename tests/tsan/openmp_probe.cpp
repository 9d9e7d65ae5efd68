// Shows that ThreadSanitizer understands the OpenMP runtime in use: the same loops with and without a race.
//   openmp_probe          correct program: no report
//   openmp_probe race     an unprotected sum: "data race" must be reported
//   openmp_probe nowait   a barrier left out: "data race" must be reported
// A runtime that is not understood reports races in the first; a sanitizer that is blind misses the others.
#include <omp.h>

#include <cstdio>
#include <string_view>
#include <vector>

namespace {

constexpr int kNumThreads = 4;
constexpr int kCount = 1000;

// Each thread fills a part of `out`, then reads what other threads filled.
long sum_neighbours(bool barrier) {
  std::vector<long> out(kCount);
  long sum = 0;
#pragma omp parallel num_threads(kNumThreads)
  {
    const int thread = omp_get_thread_num();
    for (int i = thread; i < kCount; i += kNumThreads) out[i] = i;
    if (barrier) {
#pragma omp barrier
    }
    long part = 0;
#pragma omp for schedule(dynamic, 16)
    for (int i = 0; i < kCount; ++i) part += out[kCount - 1 - i];
#pragma omp critical
    sum += part;
  }
  return sum;
}

long sum_unprotected() {
  long sum = 0;
#pragma omp parallel num_threads(kNumThreads)
  for (int i = 0; i < kCount; ++i) sum += i;
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  const long sum = mode == "race" ? sum_unprotected() : sum_neighbours(mode != "nowait");
  std::printf("%ld\n", sum);
  return 0;
}
