// NVIDIA's run-time compiler, opened at run time (major versions 12 and 13).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/kernel_resources.h"
#include "store/kernel_spec.h"
#include "support/config.h"

namespace onepass {

struct CompiledKernel {
  std::string image;          // machine code (cubin), or PTX text when asked for
  std::string log;            // of the compiler
  KernelResources resources;  // of machine code
};

struct CompilerVersion {
  int major = 0, minor = 0;

  bool operator==(const CompilerVersion&) const = default;
};

/// Where NVRTC may be, best first: a configured path, then what the process or the loader knows, then
/// toolkits, then the folders of Python packages (PyTorch's and NVIDIA's own).
std::vector<std::string> nvrtc_candidates(const Config& config);

/// The version that the first candidate with a folder will have, by the file name of its builtins library
/// (libnvrtc-builtins.so.13.0): a look into a folder, where opening a library of 100 MB takes ten
/// milliseconds. Nothing when no name says it.
std::optional<CompilerVersion> nvrtc_version_by_name(const Config& config);

class Nvrtc {
 public:
  /// The compiler, or null; looked for once per process.
  static const Nvrtc* instance();
  /// Where instance() looked and why it found nothing.
  static const std::string& missing_reason();

  CompilerVersion version() const { return version_; }
  const std::string& path() const { return path_; }

  /// Compiles a spec; thread-safe. @throws EnvironmentError with kernel name, options, the first compiler
  /// error and the file in which the source was kept.
  CompiledKernel compile(const KernelSpec& spec) const;
  /// The same to PTX, which every GPU since the spec's architecture runs through the driver's own compiler.
  CompiledKernel compile_ptx(const KernelSpec& spec) const;

 private:
  Nvrtc() = default;
  bool open(std::string& reason);
  CompiledKernel build(const KernelSpec& spec, const std::vector<std::string>& options, bool ptx) const;

  struct Table;
  const Table* table_ = nullptr;
  CompilerVersion version_;
  std::string path_;
};

}  // namespace onepass
