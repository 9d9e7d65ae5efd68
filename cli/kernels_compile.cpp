// onepass kernels compile: kernels by name, with what each takes of a multiprocessor.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/kernels_actions.h"
#include "cli/parallel.h"
#include "cli/require_compiler.h"
#include "cli/text_output.h"
#include "plan/explain.h"
#include "support/message.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass kernels compile";

struct Compiled {
  CompiledKernel kernel;
  std::optional<std::string> over_budget;
  double seconds = 0;
};

Compiled compile(const KernelSpec& spec, bool ptx, const Nvrtc& nvrtc) {
  const auto begin = std::chrono::steady_clock::now();
  Compiled result;
  result.kernel = ptx ? nvrtc.compile_ptx(spec) : nvrtc.compile(spec);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!ptx) result.over_budget = over_budget(spec, result.kernel.resources);
  return result;
}

Json kernel_to_json(const KernelSpec& spec, const Compiled& result, ImageKind kind) {
  const bool ptx = kind == ImageKind::Ptx;
  Json json = {{"name", kernel_name(spec)},
               {"architecture", architecture_text(spec, kind)},
               {"bytes", result.kernel.image.size()},
               {"seconds", result.seconds}};
  if (ptx) return json;
  json["registers"] = result.kernel.resources.registers;
  json["register_budget"] = register_budget(spec);
  json["local_bytes"] = result.kernel.resources.local_bytes;
  json["spilled_bytes"] = result.kernel.resources.spilled_bytes;
  json["over_budget"] = result.over_budget ? Json(*result.over_budget) : Json(nullptr);
  return json;
}

}  // namespace

ExitStatus compile_kernels(const CommandLine& line) {
  const KernelsOptions& o = line.kernels;
  if (o.names.empty()) {
    throw_invalid(kCall, "no kernel is given",
                  "kernel names as 'onepass plan CASE --device NAME' prints them",
                  fmt::format("try onepass plan {} --device h200", kCaseExample));
  }
  if (!o.out.empty() && o.names.size() > 1) {
    throw_invalid(kCall, fmt::format("--out is given for {} kernels", o.names.size()),
                  "--out with one kernel", "compile them one by one");
  }
  std::vector<KernelSpec> specs;
  for (const std::string& name : o.names) specs.push_back(parse_kernel_name(name));
  const Nvrtc& nvrtc = require_compiler(kCall);
  if (!o.out.empty()) try_out_file(kCall, o.out);
  std::vector<Compiled> results(specs.size());
  parallel_for(specs.size(), [&](std::size_t i) { results[i] = compile(specs[i], o.ptx, nvrtc); });
  if (!o.out.empty()) {
    const std::string_view image = results.front().kernel.image;
    write_out_file(kCall, o.out, o.ptx ? image.substr(0, image.find('\0')) : image);  // text without its end
  }

  bool failed = false;
  Json list = Json::array();
  Table table({"kernel", "registers", "of", "local bytes", "size", "time"});
  std::string findings;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Compiled& result = results[i];
    const KernelResources& r = result.kernel.resources;
    failed = failed || result.over_budget;
    list.push_back(kernel_to_json(specs[i], result, o.ptx ? ImageKind::Ptx : ImageKind::Cubin));
    const auto number = [&](int value) { return o.ptx ? std::string("-") : std::to_string(value); };
    table.add({o.names[i], number(r.registers), number(register_budget(specs[i])), number(r.local_bytes),
               bytes_text(static_cast<double>(result.kernel.image.size())), seconds_text(result.seconds)});
    if (result.over_budget) findings += fmt::format("FAIL  {}: {}\n", o.names[i], *result.over_budget);
  }
  if (line.json) {
    print_json({{"compiler", fmt::format("{}.{}", nvrtc.version().major, nvrtc.version().minor)},
                {"kernels", std::move(list)}});
  } else {
    print_text(table.text() + findings);
  }
  return failed ? ExitStatus::CheckFailed : ExitStatus::Done;
}

}  // namespace onepass::cli
