#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "api/environment_text.h"
#include "backends/cpu/backend.h"
#include "module.h"
#include "onepass/attention.h"
#include "store/bundle.h"
#include "support/config.h"
#include "support/message.h"

namespace nb = nanobind;

namespace onepass::python {
namespace {

/// The lines of `python -m onepass info`, by name.
nb::dict info() {
  const DeviceInfo cpu = this_cpu();
  nb::dict lines;
  lines["onepass"] = std::string(version());
  lines["cpu"] = fmt::format("{}, {} cores for this process", cpu.name, cpu.num_processors);
  lines["vectors"] =
      fmt::format("{} (available: {})", cpu.instruction_set, joined(cpu::simd_instruction_sets()));
  lines["GPUs"] = gpus_text();
  lines["GPU compiler"] = compiler_text();
  lines["kernel bundle"] = describe(Bundle::shipped());
  lines["kernel cache"] = config().cache_folder;
  return lines;
}

}  // namespace

void bind_info(nb::module_& module) {
  module.def(
      "version", [] { return std::string(version()); }, "Version of the compiled library.");
  module.def("info", info, "What the library is and what it found on this machine, by name.");
  module.def("known_devices", &known_devices, "GPUs that a plan can be made for.");
}

}  // namespace onepass::python
