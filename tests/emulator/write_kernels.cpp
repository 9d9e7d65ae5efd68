// write_kernels FOLDER NUM_FILES: the source of every kernel that the plans of cases.h name, spread over
// kernels_0.cpp ... of FOLDER, and kernel_table.cpp.
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "plan/cuda_plan.h"
#include "problem/case_text.h"
#include "store/kernel_spec.h"
#include "store/source_writer.h"
#include "tests/emulator/cases.h"
#include "tests/emulator/plan_on.h"

namespace onepass::emulator {
namespace {

void add_kernels(const Plan& plan, std::set<std::string>& names) {
  for (const PlanStep& step : plan.steps) names.insert(step.kernel);
  for (const Plan& part : plan.parts) add_kernels(part, names);
}

std::set<std::string> kernel_names() {
  std::set<std::string> names;
  const auto add = [&](const DeviceInfo& device, const char* text) {
    const Case c = parse_case(text);
    add_kernels(c.backward ? plan_on(device, verify::make_gradient_tensors(c))
                           : plan_on(device, verify::make_tensors(c)),
                names);
  };
  for (const EmulatedCase& c : kCases) add(emulated_device(c.device, kForwardInstructions), c.text);
  for (const EmulatedCase& c : kSm80BackwardCases)
    add(emulated_device(c.device, kForwardInstructions), c.text);
  for (const EmulatedCase& c : kDecodeCases) add(emulated_device(c.device, kDecodeInstructions), c.text);
  for (const EmulatedCase& c : kStayingDecodeCases) add(small_device(std::stoi(c.device)), c.text);
  for (const EmulatedCase& c : kBackwardCases) add(small_device(), c.text);
  for (const EmulatedCase& c : kInvariantCases) add(invariant_device(c.device), c.text);
  for (const EmulatedCase& c : kMixedCases) add(small_device(std::stoi(c.device)), c.text);
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (const DType stored : {dtype, DType::F8E4M3, DType::F8E5M2, DType::I8}) {
      for (const int load_bytes : {16, 2}) {
        names.insert(kernel_name(append_kv_kernel(kForwardInstructions, dtype, stored, load_bytes)));
      }
    }
  }
  return names;
}

/// Products become calls that read their text: asm statements are for another machine.
std::string with_products_called(const std::string& source) {
  std::istringstream lines(source);
  std::string text, line;
  while (std::getline(lines, line)) {
    const auto replace = [&line](std::string_view from, std::string_view to) {
      for (std::size_t at = 0; (at = line.find(from, at)) != std::string::npos; at += to.size())
        line.replace(at, from.size(), to);
    };
    if (line.starts_with("    asm volatile(")) replace("asm volatile", "::onepass::emulator::issue_wgmma");
    if (line.starts_with("      : \"+f\"")) line = "      , d";
    if (line.starts_with("      : \"r\"")) {
      line =
          (line.starts_with("      : \"r\"(a[0])") ? "      , a, {" : "      , nullptr, {") + line.substr(8);
      replace("\"r\"(", "Uint32(");
      replace(");", "});");
    }
    text += line + "\n";
  }
  return text;
}

void write(const std::string& folder, const std::string& name, const std::string& text) {
  std::ofstream file(folder + "/" + name);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(name + " cannot be written");
}

void write_kernels(const std::string& folder, std::size_t num_files) {
  std::vector<std::string> texts(num_files,
                                 "#include \"tests/emulator/builtins.h\"\n#include "
                                 "\"tests/emulator/kernel_table.h\"\n");
  std::string declarations, entries;
  std::size_t idx = 0;
  for (const std::string& name : kernel_names()) {
    // One program holds them all, so each kernel's `struct Spec` needs a name of its own.
    texts[idx % num_files] += fmt::format(
        "\n#undef Spec\n#define Spec Spec{0}\n{1}\n"
        "void enter_{0}(const void* params) {{ onepass::emulator::enter({2}, params); }}\n",
        idx, with_products_called(write_source(parse_kernel_name(name))), name);
    declarations += fmt::format("void enter_{}(const void* params);\n", idx);
    entries += fmt::format("    {{\"{}\", enter_{}}},\n", name, idx);
    ++idx;
  }
  for (std::size_t n = 0; n < num_files; ++n) write(folder, fmt::format("kernels_{}.cpp", n), texts[n]);
  write(folder, "kernel_table.cpp",
        fmt::format("#include \"tests/emulator/kernel_table.h\"\n\n{}\nnamespace onepass::emulator {{\n"
                    "namespace {{\nconstexpr EmulatedKernel kKernels[] = {{\n{}}};\n}}  // namespace\n\n"
                    "std::span<const EmulatedKernel> kernel_table() {{ return kKernels; }}\n\n}}\n",
                    declarations, entries));
}

}  // namespace
}  // namespace onepass::emulator

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: write_kernels FOLDER NUM_FILES\n");
    return 2;
  }
  try {
    onepass::emulator::write_kernels(argv[1], std::strtoul(argv[2], nullptr, 10));
  } catch (const std::exception& error) {
    fmt::print(stderr, "write_kernels: {}\n", error.what());
    return 1;
  }
  return 0;
}
