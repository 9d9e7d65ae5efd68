#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <string>
#include <vector>

#include "backends/cpu/backend.h"
#include "dispatch/device_info.h"
#include "onepass/plan.h"
#include "support/message.h"

namespace onepass {
namespace {

constexpr double kTera = 1e12;
constexpr double kGigabytePerSecond = 1e9;
constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;

// Dense peaks without sparsity, as the vendor publishes them. f16: FP16/BF16 tensor cores, FP32 accumulation.
// shared_bytes_per_block is the opt-in maximum of a thread block: CUDA C++ Programming Guide, table
// "Technical Specifications per Compute Capability" (163 KiB on 8.0, 99 on 8.9, 227 on 9.0 and 10.0); the
// same table bounds the L1 data cache + shared memory of a multiprocessor (192, 128, 256 and 256 KiB).
const std::array<DeviceInfo, 6>& gpu_table() {
  static const std::array<DeviceInfo, 6> table = {{
      // "NVIDIA A100 Tensor Core GPU" data sheet (June 2021), A100 80GB SXM: 19.5 TF FP32, 312 TF BF16,
      // 2,039 GB/s; 108 multiprocessors and 40 MB of L2: "NVIDIA A100 Tensor Core GPU Architecture".
      // Ridge for 16-bit inputs: 312e12 / 2039e9 = 153 FLOP per byte.
      {.name = "a100",
       .kind = DeviceInfo::Kind::Cuda,
       .compute_capability = 80,
       .num_processors = 108,
       .memory_bytes = 80'000'000'000,
       .l2_bytes = 40 * kMiB,
       .l1_bytes_per_processor = 192 * kKiB,
       .shared_bytes_per_block = 163 * kKiB,
       .memory_bytes_per_second = 2039 * kGigabytePerSecond,
       .f32_flops_per_second = 19.5 * kTera,
       .f16_flops_per_second = 312 * kTera,
       .f8_flops_per_second = 0,
       .instruction_set = {}},
      // "NVIDIA H100 Tensor Core GPU" data sheet, H100 SXM: 67 TF FP32, 1,979 TF BF16 and 3,958 TF FP8 with
      // sparsity (half of each dense), 80 GB, 3.35 TB/s; 132 multiprocessors and 50 MB of L2: "NVIDIA H100
      // Tensor Core GPU Architecture".
      {.name = "h100",
       .kind = DeviceInfo::Kind::Cuda,
       .compute_capability = 90,
       .num_processors = 132,
       .memory_bytes = 80'000'000'000,
       .l2_bytes = 50 * kMiB,
       .l1_bytes_per_processor = 256 * kKiB,
       .shared_bytes_per_block = 227 * kKiB,
       .memory_bytes_per_second = 3350 * kGigabytePerSecond,
       .f32_flops_per_second = 67 * kTera,
       .f16_flops_per_second = 989 * kTera,
       .f8_flops_per_second = 1979 * kTera,
       .instruction_set = {}},
      // "NVIDIA H200 Tensor Core GPU" data sheet, H200 SXM: the H100's processors with 141 GB at 4.8 TB/s.
      // Its driver reports 60 MiB of L2.
      {.name = "h200",
       .kind = DeviceInfo::Kind::Cuda,
       .compute_capability = 90,
       .num_processors = 132,
       .memory_bytes = 141'000'000'000,
       .l2_bytes = 50 * kMiB,
       .l1_bytes_per_processor = 256 * kKiB,
       .shared_bytes_per_block = 227 * kKiB,
       .memory_bytes_per_second = 4800 * kGigabytePerSecond,
       .f32_flops_per_second = 67 * kTera,
       .f16_flops_per_second = 989 * kTera,
       .f8_flops_per_second = 1979 * kTera,
       .instruction_set = {}},
      // "NVIDIA L40S" data sheet: 91.6 TF FP32, 362.05 TF BF16, 733 TF FP8, 48 GB, 864 GB/s; 142
      // multiprocessors and 96 MB of L2: "NVIDIA Ada GPU Architecture".
      {.name = "l40s",
       .kind = DeviceInfo::Kind::Cuda,
       .compute_capability = 89,
       .num_processors = 142,
       .memory_bytes = 48'000'000'000,
       .l2_bytes = 96 * kMiB,
       .l1_bytes_per_processor = 128 * kKiB,
       .shared_bytes_per_block = 99 * kKiB,
       .memory_bytes_per_second = 864 * kGigabytePerSecond,
       .f32_flops_per_second = 91.6 * kTera,
       .f16_flops_per_second = 362.05 * kTera,
       .f8_flops_per_second = 733 * kTera,
       .instruction_set = {}},
      // "NVIDIA Ada GPU Architecture", appendix A, GeForce RTX 4090: 82.6 TF FP32, 165.2 TF FP16 with FP32
      // accumulate, 330.3 TF FP8 with FP32 accumulate, 24 GB, 1,008 GB/s, 128 multiprocessors, 72 MB of L2.
      {.name = "rtx4090",
       .kind = DeviceInfo::Kind::Cuda,
       .compute_capability = 89,
       .num_processors = 128,
       .memory_bytes = 24'000'000'000,
       .l2_bytes = 72 * kMiB,
       .l1_bytes_per_processor = 128 * kKiB,
       .shared_bytes_per_block = 99 * kKiB,
       .memory_bytes_per_second = 1008 * kGigabytePerSecond,
       .f32_flops_per_second = 82.6 * kTera,
       .f16_flops_per_second = 165.2 * kTera,
       .f8_flops_per_second = 330.3 * kTera,
       .instruction_set = {}},
      // "NVIDIA DGX B200" data sheet, per GPU (an eighth): 36 PF BF16 and 72 PF FP8 with sparsity for eight,
      // so 2.25 and 4.5 PF dense each; 180 GB, 8 TB/s. 80 TF FP32: "NVIDIA Blackwell Architecture Technical
      // Brief", HGX B200. 148 multiprocessors, 126 MB of L2: the CUDA device properties of a B200.
      {.name = "b200",
       .kind = DeviceInfo::Kind::Cuda,
       .compute_capability = 100,
       .num_processors = 148,
       .memory_bytes = 180'000'000'000,
       .l2_bytes = 126 * kMiB,
       .l1_bytes_per_processor = 256 * kKiB,
       .shared_bytes_per_block = 227 * kKiB,
       .memory_bytes_per_second = 8000 * kGigabytePerSecond,
       .f32_flops_per_second = 80 * kTera,
       .f16_flops_per_second = 2250 * kTera,
       .f8_flops_per_second = 4500 * kTera,
       .instruction_set = {}},
  }};
  return table;
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// What does not change while the process runs.
struct CpuFacts {
  std::string name = "this-cpu";  // stays when /proc/cpuinfo names no model, as on most ARM machines
  double clock_hz = 2e9;          // stays when neither source below exists
  std::int64_t memory_bytes = 0;
  std::int64_t l1_bytes = 32 * kKiB;  // stays when the C library does not know, as on most ARM machines
  std::int64_t last_level_bytes = 1 * kMiB;
};

CpuFacts read_cpu_facts() {
  CpuFacts facts;
  double megahertz = 0;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line) && !line.empty();) {  // the first processor's lines
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(line.substr(0, colon));
    const std::string value = trimmed(line.substr(colon + 1));
    if (key == "model name") facts.name = value;
    if (key == "cpu MHz") std::from_chars(value.data(), value.data() + value.size(), megahertz);
  }
  double kilohertz = 0;
  std::ifstream("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") >> kilohertz;
  if (kilohertz > 0) {
    facts.clock_hz = kilohertz * 1e3;
  } else if (megahertz > 0) {
    facts.clock_hz = megahertz * 1e6;
  }
  const auto positive = [](long value, std::int64_t fallback) { return value > 0 ? value : fallback; };
  facts.memory_bytes = positive(sysconf(_SC_PHYS_PAGES), 0) * positive(sysconf(_SC_PAGESIZE), 0);
  facts.l1_bytes = positive(sysconf(_SC_LEVEL1_DCACHE_SIZE), facts.l1_bytes);
  facts.last_level_bytes = positive(sysconf(_SC_LEVEL3_CACHE_SIZE),
                                    positive(sysconf(_SC_LEVEL2_CACHE_SIZE), facts.last_level_bytes));
  return facts;
}

// The cores that the scheduler may give to this process (taskset, cgroup cpusets), which is what OpenMP uses.
int usable_cores() {
  for (int capacity = CPU_SETSIZE; capacity <= (1 << 20); capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(capacity));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    const bool known = set != nullptr && sched_getaffinity(0, bytes, set) == 0;
    const bool too_small = !known && errno == EINVAL;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return std::max(1, count);
    if (!too_small) break;
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

// Multiply-adds count two. Assumes the common number of vector units: two 512-bit FMA units (parts with one
// reach half of this), two 256-bit FMA units, one 128-bit multiplier beside one adder, two 128-bit FMA units
// on ARM (large cores have four). AVX-512 BF16 products also reach 64 per cycle: one unit, twice the pairs.
double flops_per_cycle(const std::string& instruction_set) {
  const auto starts = [&](const char* prefix) { return instruction_set.rfind(prefix, 0) == 0; };
  if (starts("AVX3") || starts("AVX10")) return 64;
  if (starts("AVX2")) return 32;
  if (starts("SSE") || starts("SSSE")) return 8;
  if (starts("NEON") || starts("SVE")) return 16;
  return 2;
}

}  // namespace

DeviceInfo this_cpu() {
  static const CpuFacts facts = read_cpu_facts();
  // Estimates, and shown as such: one core sustains about 10 GB/s from memory on the machines of the last ten
  // years, a socket's channels end at about 200. `onepass bench` measures what the machine really gives.
  constexpr double kBytesPerSecondPerCore = 10e9;
  constexpr double kBytesPerSecondPerMachine = 200e9;

  DeviceInfo device;
  device.name = facts.name;
  device.kind = DeviceInfo::Kind::Cpu;
  device.num_processors = usable_cores();
  device.memory_bytes = facts.memory_bytes;
  device.l2_bytes = facts.last_level_bytes;
  device.l1_bytes_per_processor = facts.l1_bytes;
  device.memory_bytes_per_second =
      std::min(device.num_processors * kBytesPerSecondPerCore, kBytesPerSecondPerMachine);
  const std::vector<std::string> instruction_sets = cpu::simd_instruction_sets();
  if (!instruction_sets.empty()) device.instruction_set = instruction_sets.front();
  device.f32_flops_per_second =
      device.num_processors * facts.clock_hz * flops_per_cycle(device.instruction_set);
  // 16-bit inputs are widened to f32 or multiplied in pairs; matrix units (AMX) are not used.
  device.f16_flops_per_second = device.f32_flops_per_second;
  return device;
}

DeviceInfo device_like(std::string_view product_name) {
  constexpr std::pair<std::string_view, std::string_view> kProducts[] = {
      {"A100", "a100"}, {"H100", "h100"},        {"H200", "h200"},
      {"L40S", "l40s"}, {"RTX 4090", "rtx4090"}, {"B200", "b200"}};
  for (const auto& [part, name] : kProducts) {
    if (product_name.find(part) != std::string_view::npos) return *find_device(name);
  }
  return {};
}

std::optional<DeviceInfo> find_device(std::string_view name) {
  for (const DeviceInfo& device : gpu_table()) {
    if (device.name == name) return device;
  }
  return std::nullopt;
}

std::vector<std::string> known_devices() {
  std::vector<std::string> names;
  for (const DeviceInfo& device : gpu_table()) names.push_back(device.name);
  return names;
}

}  // namespace onepass
