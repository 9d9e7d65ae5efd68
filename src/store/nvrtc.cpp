#include "store/nvrtc.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

#include "store/source_writer.h"
#include "support/message.h"
#include "support/shared_object.h"

namespace onepass {

namespace fs = std::filesystem;

/// The exported functions, declared by us (nvrtc.h, unchanged since CUDA 11.1).
struct Nvrtc::Table {  // NOLINTBEGIN(readability-identifier-naming): the compiler's names
  using Program = struct NvrtcProgram*;
  using Result = int;
  Result (*nvrtcVersion)(int* major, int* minor);
  const char* (*nvrtcGetErrorString)(Result);
  Result (*nvrtcCreateProgram)(Program*, const char* source, const char* name, int num_headers,
                               const char* const* headers, const char* const* include_names);
  Result (*nvrtcCompileProgram)(Program, int num_options, const char* const* options);
  Result (*nvrtcDestroyProgram)(Program*);
  Result (*nvrtcGetProgramLogSize)(Program, std::size_t*);
  Result (*nvrtcGetProgramLog)(Program, char*);
  Result (*nvrtcGetCUBINSize)(Program, std::size_t*);
  Result (*nvrtcGetCUBIN)(Program, char*);
  Result (*nvrtcGetPTXSize)(Program, std::size_t*);
  Result (*nvrtcGetPTX)(Program, char*);
};  // NOLINTEND(readability-identifier-naming)

namespace {

std::string& reason_storage() {
  static std::string reason;
  return reason;
}

void add_matches(std::vector<std::string>& found, const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> here;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "libnvrtc.so.13" || name == "libnvrtc.so.12") here.push_back(entry.path().string());
  }
  std::sort(here.rbegin(), here.rend());  // the newer major version first
  found.insert(found.end(), here.begin(), here.end());
}

/// <packages>/nvidia/*/lib, where PyTorch's and NVIDIA's wheels put it.
void add_wheels(std::vector<std::string>& found, const fs::path& packages) {
  std::error_code error;
  for (const auto& part : fs::directory_iterator(packages / "nvidia", error)) {
    add_matches(found, part.path() / "lib");
  }
}

/// The packages of <root>/lib/python3.x.
void add_python_folders(std::vector<std::string>& found, const fs::path& root) {
  std::error_code error;
  for (const auto& python : fs::directory_iterator(root / "lib", error)) {
    if (!python.path().filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      add_wheels(found, python.path() / packages);
    }
  }
}

constexpr std::string_view kBuiltins = "libnvrtc-builtins.so.";  // then major.minor

/// The builtins libraries beside an NVRTC that is named with its folder.
std::vector<fs::path> builtins_beside(const std::string& nvrtc_path) {
  std::vector<fs::path> found;
  if (nvrtc_path.find('/') == std::string::npos) return found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(nvrtc_path).parent_path(), error)) {
    if (entry.path().filename().string().starts_with(kBuiltins)) found.push_back(entry.path());
  }
  return found;
}

/// libnvrtc opens its builtins library by bare name and has no run path: open it first, by full path.
void open_builtins(const std::string& nvrtc_path) {
  for (const fs::path& builtins : builtins_beside(nvrtc_path)) SharedObject{builtins.string()};
}

std::optional<CompilerVersion> version_in(const std::string& builtins_name) {
  const char* const end = builtins_name.data() + builtins_name.size();
  CompilerVersion version;
  const auto [dot, bad_major] = std::from_chars(builtins_name.data() + kBuiltins.size(), end, version.major);
  if (bad_major != std::errc{} || dot == end || *dot != '.') return std::nullopt;
  if (std::from_chars(dot + 1, end, version.minor).ec != std::errc{}) return std::nullopt;
  return version;
}

std::string first_error(const std::string& log) {
  const std::size_t at = log.find("error");
  if (at == std::string::npos) return log.substr(0, 300);
  const std::size_t begin = log.rfind('\n', at) == std::string::npos ? 0 : log.rfind('\n', at) + 1;
  return log.substr(begin, std::min<std::size_t>(log.find('\n', at), begin + 400) - begin);
}

/// A folder of this process alone: the temporary folder belongs to every user of the machine.
const fs::path& folder_of_failures() {
  static const fs::path folder = [] {
    std::error_code error;
    std::string pattern = fs::temp_directory_path(error) / "onepass-failed-XXXXXX";
    return fs::path(::mkdtemp(pattern.data()) != nullptr ? pattern : "");
  }();
  return folder;
}

std::string keep_source(const std::string& name, const std::string& source) {
  std::error_code error;
  if (folder_of_failures().empty()) return "nowhere";
  const fs::path file = folder_of_failures() / (name + ".cu");
  std::ofstream(file) << source;
  return fs::exists(file, error) ? file.string() : "nowhere";
}

}  // namespace

std::vector<std::string> nvrtc_candidates(const Config& config) {
  std::vector<std::string> found;
  if (!config.nvrtc_path.empty()) found.push_back(config.nvrtc_path);
  found.insert(found.end(), {"libnvrtc.so.13", "libnvrtc.so.12"});
  for (const std::string& toolkit : {config.cuda_home, std::string("/usr/local/cuda")}) {
    if (!toolkit.empty()) add_matches(found, fs::path(toolkit) / "lib64");
  }
  if (!config.conda_prefix.empty()) add_matches(found, fs::path(config.conda_prefix) / "lib");
  if (!config.library_folder.empty()) add_wheels(found, fs::path(config.library_folder).parent_path());
  for (const std::string& root : {config.virtual_env, config.conda_prefix, config.user_base,
                                  std::string("/usr/local"), std::string("/usr")}) {
    if (!root.empty()) add_python_folders(found, root);
  }
  return found;
}

std::optional<CompilerVersion> nvrtc_version_by_name(const Config& config) {
  for (const std::string& path : nvrtc_candidates(config)) {
    for (const fs::path& builtins : builtins_beside(path)) {
      if (const auto version = version_in(builtins.filename().string())) return version;
    }
  }
  return std::nullopt;
}

bool Nvrtc::open(std::string& reason) {
  std::string tried;
  for (const std::string& path : nvrtc_candidates(config())) {
    open_builtins(path);
    const SharedObject library(path);
    if (!library.valid()) {
      tried += fmt::format("{}{}", tried.empty() ? "" : ", ", path);
      continue;
    }
    auto table = std::make_unique<Table>();
    Table& t = *table;
#define ONEPASS_LOAD(name) library.load(t.name, #name)
    const bool complete = ONEPASS_LOAD(nvrtcVersion) && ONEPASS_LOAD(nvrtcGetErrorString) &&
                          ONEPASS_LOAD(nvrtcCreateProgram) && ONEPASS_LOAD(nvrtcCompileProgram) &&
                          ONEPASS_LOAD(nvrtcDestroyProgram) && ONEPASS_LOAD(nvrtcGetProgramLogSize) &&
                          ONEPASS_LOAD(nvrtcGetProgramLog) && ONEPASS_LOAD(nvrtcGetCUBINSize) &&
                          ONEPASS_LOAD(nvrtcGetCUBIN) && ONEPASS_LOAD(nvrtcGetPTXSize) &&
                          ONEPASS_LOAD(nvrtcGetPTX);
#undef ONEPASS_LOAD
    if (!complete || t.nvrtcVersion(&version_.major, &version_.minor) != 0) {
      tried += fmt::format("{}{} (incomplete)", tried.empty() ? "" : ", ", path);
      continue;
    }
    path_ = path;
    table_ = table.release();  // lives as long as the process
    return true;
  }
  reason = fmt::format("no NVRTC found (tried {})", tried);
  return false;
}

const Nvrtc* Nvrtc::instance() {
  static const Nvrtc* const nvrtc = [] {
    auto* fresh = new Nvrtc;
    if (fresh->open(reason_storage())) return fresh;
    delete fresh;
    return static_cast<Nvrtc*>(nullptr);
  }();
  return nvrtc;
}

const std::string& Nvrtc::missing_reason() {
  instance();
  return reason_storage();
}

CompiledKernel Nvrtc::compile(const KernelSpec& spec) const {
  return build(spec, compile_options(spec), false);
}

CompiledKernel Nvrtc::compile_ptx(const KernelSpec& spec) const {
  std::vector<std::string> options = compile_options(spec);
  options.front().replace(options.front().find("sm_"), 3, "compute_");
  return build(spec, options, true);
}

CompiledKernel Nvrtc::build(const KernelSpec& spec, const std::vector<std::string>& options, bool ptx) const {
  const std::string name = kernel_name(spec), source = write_source(spec), file = name + ".cu";
  std::vector<std::string> paths, texts;
  std::vector<const char*> path_pointers, text_pointers, option_pointers;
  for (const KernelFile& f : kernel_files()) {
    paths.emplace_back(f.path);
    texts.emplace_back(f.text);
  }
  for (std::size_t i = 0; i < paths.size(); ++i) {
    path_pointers.push_back(paths[i].c_str());
    text_pointers.push_back(texts[i].c_str());
  }
  for (const std::string& option : options) option_pointers.push_back(option.c_str());

  const Table& t = *table_;
  Table::Program program = nullptr;
  const auto fail = [&](const std::string& what) {
    throw EnvironmentError(format_message(
        "compile kernel",
        fmt::format("{} (NVRTC {}.{}, {}): {} (source kept: {})", name, version_.major, version_.minor,
                    joined(options, " "), what, keep_source(name, source)),
        "kernel text and an architecture that NVRTC 12 or 13 compiles",
        "use a newer NVRTC if it does not know the architecture; otherwise please report this"));
  };
  if (const int r =
          t.nvrtcCreateProgram(&program, source.c_str(), file.c_str(), static_cast<int>(paths.size()),
                               text_pointers.data(), path_pointers.data());
      r != 0) {
    fail(t.nvrtcGetErrorString(r));
  }
  const int result =
      t.nvrtcCompileProgram(program, static_cast<int>(option_pointers.size()), option_pointers.data());
  CompiledKernel compiled;
  std::size_t size = 0;
  if (t.nvrtcGetProgramLogSize(program, &size) == 0 && size > 1) {
    compiled.log.resize(size);
    t.nvrtcGetProgramLog(program, compiled.log.data());
    compiled.log.resize(size - 1);  // the terminating zero
  }
  const auto get_size = ptx ? t.nvrtcGetPTXSize : t.nvrtcGetCUBINSize;
  const auto get_image = ptx ? t.nvrtcGetPTX : t.nvrtcGetCUBIN;
  if (result == 0 && get_size(program, &size) == 0) {
    compiled.image.resize(size);
    get_image(program, compiled.image.data());
  }
  t.nvrtcDestroyProgram(&program);
  if (result != 0) fail(first_error(compiled.log));
  if (!ptx) compiled.resources = read_resources(compiled.log);
  return compiled;
}

}  // namespace onepass
