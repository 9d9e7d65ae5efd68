#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "api/environment_text.h"
#include "backends/cpu/backend.h"
#include "backends/cuda/host/driver.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/kernels_actions.h"
#include "cli/matrix_units.h"
#include "cli/text_output.h"
#include "onepass/attention.h"
#include "plan/explain.h"
#include "store/nvrtc.h"
#include "support/message.h"

namespace onepass::cli {
namespace {

struct Cache {
  const char* name;
  long bytes;
};

std::vector<Cache> caches() {
  std::vector<Cache> found;
  for (const auto& [name, key] :
       {std::pair{"L1d", _SC_LEVEL1_DCACHE_SIZE}, std::pair{"L2", _SC_LEVEL2_CACHE_SIZE},
        std::pair{"L3", _SC_LEVEL3_CACHE_SIZE}}) {
    if (const long bytes = sysconf(key); bytes > 0) found.push_back({name, bytes});
  }
  return found;
}

std::vector<std::string> matrix_unit_names() {
  std::vector<std::string> names;
  for (const MatrixUnit& unit : bf16_units()) names.emplace_back(unit.name);
  return names;
}

std::string build_text() {
  const std::string sanitizers = ONEPASS_SANITIZERS;
  return fmt::format("{}, {}{}", ONEPASS_COMPILER, ONEPASS_BUILD_TYPE,
                     sanitizers.empty() ? "" : ", sanitizers " + sanitizers);
}

std::string system_text() {
  utsname name{};
  return uname(&name) == 0 ? fmt::format("{} {} {}", name.sysname, name.release, name.machine) : "unknown";
}

void print_info_json(const DeviceInfo& cpu) {
  Json cache_sizes = Json::object();
  for (const Cache& cache : caches()) cache_sizes[cache.name] = cache.bytes;
  print_json(
      {{"version", version()},
       {"build",
        {{"compiler", ONEPASS_COMPILER}, {"type", ONEPASS_BUILD_TYPE}, {"sanitizers", ONEPASS_SANITIZERS}}},
       {"system", system_text()},
       {"cpu", device_to_json(cpu)},
       {"cache_bytes", std::move(cache_sizes)},
       {"instruction_sets", {{"chosen", cpu.instruction_set}, {"available", cpu::simd_instruction_sets()}}},
       {"bf16_units", matrix_unit_names()},
       {"gpu",
        {{"present", cuda::Driver::instance() != nullptr},
         {"text", gpus_text()},
         {"compiler", compiler_text()},
         {"bundle", bundle_to_json()},
         {"cache", cache_to_json()}}},
       {"known_devices", known_devices()}});
}

void print_info_text(const DeviceInfo& cpu) {
  std::string sizes;
  for (const Cache& cache : caches()) {
    sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", cache.name,
                         bytes_text(static_cast<double>(cache.bytes)));
  }
  const std::vector<std::string> units = matrix_unit_names();
  std::string text;
  text += labelled("onepass", version());
  text += labelled("built by", build_text());
  text += labelled("system", system_text());
  text += labelled("cpu", fmt::format("{}, {} cores for this process", cpu.name, cpu.num_processors));
  text += labelled("caches", sizes.empty() ? "unknown" : sizes);
  text += labelled("memory", bytes_text(static_cast<double>(cpu.memory_bytes)));
  text += labelled("vectors", fmt::format("{} (available: {})", cpu.instruction_set,
                                          joined(cpu::simd_instruction_sets())));
  text += labelled("bf16 units", units.empty() ? "none" : joined(units));
  text +=
      labelled("peaks", fmt::format("f32 {}, f16/bf16 {}, memory {} (estimated; 'onepass bench' measures)",
                                    decimal_text(cpu.f32_flops_per_second, "FLOP/s"),
                                    decimal_text(cpu.f16_flops_per_second, "FLOP/s"),
                                    decimal_text(cpu.memory_bytes_per_second, "B/s")));
  text += labelled("GPUs", gpus_text());
  if (cuda::Driver::instance() != nullptr || Nvrtc::instance() != nullptr) {
    text += labelled("GPU compiler", compiler_text());
  }
  text += labelled("kernel bundle", bundle_text());
  text += labelled("kernel cache", cache_text());
  text += labelled("plans for", fmt::format("this-cpu, {}", joined(known_devices())));
  print_text(text);
}

}  // namespace

ExitStatus info_command(const CommandLine& line) {
  const DeviceInfo cpu = this_cpu();
  if (line.json) {
    print_info_json(cpu);
  } else {
    print_info_text(cpu);
  }
  return ExitStatus::Done;
}

}  // namespace onepass::cli
