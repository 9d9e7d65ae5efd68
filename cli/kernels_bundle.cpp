// onepass kernels bundle: compiles the common kernels, holds each to its budgets, writes them to one file.
#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/kernels_actions.h"
#include "cli/parallel.h"
#include "cli/progress.h"
#include "cli/require_compiler.h"
#include "cli/text_output.h"
#include "plan/common_kernels.h"
#include "plan/explain.h"
#include "store/bundle.h"
#include "store/bundle_writer.h"
#include "store/source_writer.h"
#include "support/message.h"

namespace onepass::cli {
namespace {

constexpr const char* kCall = "onepass kernels bundle";
constexpr std::size_t kMostBytes = 10'000'000;  // what shipping it may cost

struct Built {
  KernelImage image;
  std::optional<std::string> finding;
};

Built build(const CommonKernel& kernel, const Nvrtc& nvrtc) {
  const bool ptx = kernel.kind == ImageKind::Ptx;
  CompiledKernel compiled = ptx ? nvrtc.compile_ptx(kernel.spec) : nvrtc.compile(kernel.spec);
  Built built;
  built.image = {std::move(compiled.image), kernel_name(kernel.spec), kernel.kind, KernelOrigin::Compiled};
  if (!ptx) {
    built.image.registers = compiled.resources.registers;
    built.finding = over_budget(kernel.spec, compiled.resources);
  }
  return built;
}

std::vector<Built> build_all(const std::vector<CommonKernel>& kernels, const Nvrtc& nvrtc,
                             bool show_progress) {
  std::vector<Built> built(kernels.size());
  Progress progress(show_progress);
  std::mutex mutex;
  std::int64_t num_done = 0;
  parallel_for(kernels.size(), [&](std::size_t i) {
    built[i] = build(kernels[i], nvrtc);
    const std::lock_guard lock(mutex);
    progress.show(++num_done, static_cast<std::int64_t>(kernels.size()), built[i].image.entry);
  });
  return built;
}

/// The file holds, readable, every image that went into it.
void verify_file(const std::string& path, const std::vector<Built>& built) {
  const Bundle bundle = Bundle::open(path, sources_hash());
  for (const Built& b : built) {
    if (bundle.read(b.image.entry, b.image.kind) == b.image.bytes) continue;
    throw EnvironmentError(format_message(
        kCall, fmt::format("{} was written, but {} cannot be read back from it", path, b.image.entry),
        "a disk that returns what was written", "try another disk"));
  }
}

}  // namespace

ExitStatus bundle_kernels(const CommandLine& line) {
  const std::string& path = line.kernels.out;
  if (path.empty())
    throw_invalid(kCall, "no --out is given", "--out with the file to write", "name the file");
  const auto begin = std::chrono::steady_clock::now();
  const Nvrtc& nvrtc = require_compiler(kCall);
  try_out_file(kCall, path);
  const std::vector<Built> built = build_all(common_kernels(), nvrtc, line.progress || stderr_is_terminal());

  BundleContent content{sources_hash(), nvrtc.version().major, nvrtc.version().minor, {}};
  std::vector<std::string> findings;
  for (const Built& b : built) {
    content.images.push_back(b.image);
    if (b.finding) findings.push_back(fmt::format("{}: {}", b.image.entry, *b.finding));
  }
  const std::string bytes = bundle_bytes(std::move(content));
  if (bytes.size() > kMostBytes) {
    findings.push_back(fmt::format("the bundle has {} bytes; {} are allowed", bytes.size(), kMostBytes));
  }
  if (findings.empty()) {
    write_out_file(kCall, path, bytes);
    verify_file(path, built);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (line.json) {
    print_json({{"kernels", built.size()},
                {"bytes", bytes.size()},
                {"compiler", fmt::format("{}.{}", nvrtc.version().major, nvrtc.version().minor)},
                {"seconds", seconds},
                {"findings", findings}});
  } else {
    std::string text;
    for (const std::string& finding : findings) text += fmt::format("FAIL  {}\n", finding);
    print_text(text + fmt::format("{} kernels, {}, in {:.0f} s: {}\n", built.size(),
                                  bytes_text(static_cast<double>(bytes.size())), seconds,
                                  findings.empty() ? path : "nothing written"));
  }
  return findings.empty() ? ExitStatus::Done : ExitStatus::CheckFailed;
}

}  // namespace onepass::cli
