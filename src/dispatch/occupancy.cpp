#include "dispatch/occupancy.h"

#include <algorithm>

#include "store/kernel_resources.h"

namespace onepass {
namespace {

// CUDA C++ Programming Guide: "Technical Specifications per Compute Capability" and the notes on shared
// memory of 8.x, 9.0 and 10.0. Granularities as in NVIDIA's occupancy calculator.
constexpr std::int64_t kSystemSharedBytes = 1024;  // kept of each block's shared memory since 8.0
constexpr std::int64_t kSharedGranularity = 128;
constexpr int kPartitions = 4;  // of a multiprocessor: warps and registers are divided among them
constexpr int kWarp = 32, kWarpRegisterGranularity = 256;

struct ThreadLimits {
  int threads, blocks;  // of a multiprocessor
};

ThreadLimits thread_limits(int compute_capability) {
  switch (compute_capability) {
    case 80:
    case 90:
    case 100:
    case 103: return {2048, 32};
    case 86:
    case 87: return {1536, 16};
    default: return {1536, 24};  // 8.9, 11.0, 12.x; later ones hardly have less
  }
}

template <class T>
T round_up(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int blocks_by_registers(const KernelSpec& spec, int registers) {
  const int per_warp = round_up(registers * kWarp, kWarpRegisterGranularity);
  return kRegistersOfSm / kPartitions / per_warp * kPartitions / spec.num_warps;
}

}  // namespace

int Occupancy::blocks() const { return std::min({by_shared_memory, by_threads, by_registers}); }

std::int64_t shared_bytes_per_processor(const DeviceInfo& device) {
  return device.shared_bytes_per_block + kSystemSharedBytes;
}

Occupancy occupancy(const KernelSpec& spec, const DeviceInfo& device, int registers) {
  const std::int64_t block_bytes =
      round_up(static_cast<std::int64_t>(shared_bytes(spec)), kSharedGranularity) + kSystemSharedBytes;
  const ThreadLimits limits = thread_limits(device.compute_capability);
  return {.by_shared_memory = static_cast<int>(shared_bytes_per_processor(device) / block_bytes),
          .by_threads = std::min(limits.threads / num_threads(spec), limits.blocks),
          .by_registers = blocks_by_registers(spec, registers)};
}

}  // namespace onepass
