// onepass kernels warm: what plans of the cases name is made to exist, so that no call has to compile.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "backends/cuda/host/driver.h"
#include "backends/cuda/host/forward.h"
#include "cli/case_list.h"
#include "cli/kernels_actions.h"
#include "cli/parallel.h"
#include "cli/text_output.h"
#include "plan/explain.h"
#include "plan/make_plan.h"
#include "store/image_search.h"
#include "support/config.h"
#include "support/message.h"
#include "verify/case_tensors.h"
#include "verify/gradient_tensors.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass kernels warm";
constexpr const char* kFirstGpu = "gpu";

DeviceInfo chosen_gpu(const std::string& name) {
  if (name != kFirstGpu) {
    if (const auto device = find_device(name)) return *device;
    throw_invalid(kCall, fmt::format("--device is \"{}\"", name),
                  fmt::format("{} (the first of this machine), {}", kFirstGpu, joined(known_devices())),
                  "name the GPU to compile for, such as --device h200");
  }
  if (cuda::Driver::instance() != nullptr) return cuda::device_info(0);
  throw EnvironmentError(format_message(kCall, cuda::Driver::missing_reason(),
                                        "a GPU in this machine, or --device with the name of one",
                                        "name the GPU to compile for, such as --device h200"));
}

void add_kernels(const Plan& plan, std::vector<std::string>& names) {
  for (const PlanStep& step : plan.steps) {
    if (std::find(names.begin(), names.end(), step.kernel) == names.end()) names.push_back(step.kernel);
  }
  for (const Plan& part : plan.parts) add_kernels(part, names);
}

/// The kernels of all plans, each once.
std::vector<std::string> planned_kernels(const std::vector<NamedCase>& cases, const DeviceInfo& device) {
  std::vector<std::string> names;
  for (const NamedCase& named : cases) {
    const std::string about = fmt::format("{}: {}", kCall, named.text);
    const ForwardOptions options = verify::case_shapes(named.values).options;
    const Plan plan = make_plan(about.c_str(), verify::problem_of_case(about.c_str(), named.values, options),
                                {.backend = Backend::Cuda, .num_splits = options.num_splits}, device);
    add_kernels(plan, names);
  }
  return names;
}

struct Warmed {
  KernelOrigin origin = KernelOrigin::Bundle;
  bool kept = true;  // where the next process finds it
  double seconds = 0;
};

Warmed warm(const std::string& name, const ImageSources& sources) {
  const auto begin = std::chrono::steady_clock::now();
  const KernelSpec spec = parse_kernel_name(name);
  Warmed result;
  result.origin = find_image(sources, spec, [](const KernelImage&) { return std::nullopt; });
  if (result.origin == KernelOrigin::Compiled) {
    const KernelCompiler compiler = sources.open_compiler();
    result.kept = sources.cache.read(cache_key(spec, compiler.version)).has_value();
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

const char* origin_text(KernelOrigin origin) {
  switch (origin) {
    case KernelOrigin::Memory: return "memory";
    case KernelOrigin::Bundle: return "bundle";
    case KernelOrigin::Disk: return "disk cache";
    case KernelOrigin::Compiled: return "compiled";
  }
  return "?";
}

}  // namespace

ExitStatus warm_kernels(const CommandLine& line) {
  const std::vector<NamedCase> cases = collect_cases(kCall, line.kernels.cases);
  const std::vector<std::string> names = planned_kernels(cases, chosen_gpu(line.kernels.device));
  const ImageSources sources = process_image_sources();
  std::vector<Warmed> results(names.size());
  parallel_for(names.size(), [&](std::size_t i) { results[i] = warm(names[i], sources); });
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (results[i].kept) continue;
    throw EnvironmentError(format_message(
        kCall,
        fmt::format("{} was compiled, but the disk cache \"{}\" does not keep it", names[i],
                    config().cache_folder),
        "a cache folder that can be written and has room", "set ONEPASS_CACHE_DIR to such a folder"));
  }
  if (line.json) {
    Json list = Json::array();
    for (std::size_t i = 0; i < names.size(); ++i) {
      list.push_back(
          {{"name", names[i]}, {"origin", origin_text(results[i].origin)}, {"seconds", results[i].seconds}});
    }
    print_json({{"kernels", std::move(list)}});
  } else {
    Table table({"kernel", "origin", "time"});
    for (std::size_t i = 0; i < names.size(); ++i) {
      table.add({names[i], origin_text(results[i].origin), seconds_text(results[i].seconds)});
    }
    print_text(table.text());
  }
  return ExitStatus::Done;
}

}  // namespace onepass::cli
