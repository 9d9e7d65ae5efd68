// kernel_latency NAME...: the time until each kernel is ready on GPU 0 for the first time in this process,
// and which source had it. Steer the sources by ONEPASS_BUNDLE and ONEPASS_CACHE_DIR.
#include <chrono>
#include <cstdio>
#include <exception>

#include "backends/cuda/host/driver.h"
#include "store/store.h"

namespace {

const char* origin_name(onepass::KernelOrigin origin) {
  switch (origin) {
    case onepass::KernelOrigin::Memory: return "memory";
    case onepass::KernelOrigin::Bundle: return "bundle";
    case onepass::KernelOrigin::Disk: return "disk";
    case onepass::KernelOrigin::Compiled: return "compiled";
  }
  return "?";
}

}  // namespace

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  if (argc < 2) {
    std::fprintf(stderr, "usage: kernel_latency NAME...\n");
    return 2;
  }
  try {
    const onepass::cuda::Driver* driver = onepass::cuda::Driver::instance();
    if (driver == nullptr) {
      std::fprintf(stderr, "kernel_latency: %s\n", onepass::cuda::Driver::missing_reason().c_str());
      return 3;
    }
    const onepass::cuda::ContextScope context(*driver, 0);
    for (int i = 1; i < argc; ++i) {
      onepass::KernelOrigin origin{};
      const auto begin = Clock::now();
      onepass::KernelStore::instance().get(onepass::parse_kernel_name(argv[i]), 0, &origin);
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      std::printf("%9.3f ms  %-8s  %s\n", ms, origin_name(origin), argv[i]);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernel_latency: %s\n", error.what());
    return 1;
  }
  return 0;
}
