#include "store/image_search.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "support/config.h"
#include "support/message.h"

namespace onepass {
namespace {

constexpr int kPtxArchitecture = 80;  // of the sm80 family's PTX, which every later GPU can run

/// The first line of a three-line message, without its full stop.
std::string first_line(std::string_view message) {
  message = message.substr(0, message.find('\n'));
  if (message.ends_with('.')) message.remove_suffix(1);
  return std::string(message);
}

/// One search: offers images, remembers what was said.
class Search {
 public:
  Search(const ImageSources& sources, const KernelSpec& spec, const TakeImage& take)
      : sources_(sources), spec_(spec), take_(take), name_(kernel_name(spec)) {}

  KernelOrigin run() {
    if (offer_bundle(name_, ImageKind::Cubin)) return KernelOrigin::Bundle;
    const std::optional<CompilerVersion> expected = sources_.expect_compiler();
    if (expected && offer_disk(cache_key(spec_, *expected))) return KernelOrigin::Disk;
    const KernelCompiler compiler = sources_.open_compiler();
    if (compiler.compile) {
      const std::string key = cache_key(spec_, compiler.version);
      if (compiler.version != expected && offer_disk(key)) return KernelOrigin::Disk;
      if (offer_compiled(key, compiler)) return KernelOrigin::Compiled;
    } else {
      said_.push_back(compiler.missing);
    }
    KernelSpec portable = spec_;
    portable.architecture = kPtxArchitecture;
    if (offer_bundle(kernel_name(portable), ImageKind::Ptx)) return KernelOrigin::Bundle;
    fail(compiler.compile != nullptr);
  }

 private:
  bool offer(const char* source, const KernelImage& image) {
    const std::optional<std::string> refusal = take_(image);
    if (refusal) said_.push_back(fmt::format("{}: {}", source, *refusal));
    refused_ = refused_ || refusal.has_value();
    return !refusal;
  }

  bool offer_bundle(const std::string& name, ImageKind kind) {
    const Bundle& bundle = *sources_.bundle;
    const bool ptx = kind == ImageKind::Ptx;
    if (std::optional<std::string> bytes = bundle.read(name, kind)) {
      return offer(ptx ? "bundle, PTX" : "bundle", {std::move(*bytes), name, kind, KernelOrigin::Bundle});
    }
    if (!bundle.problem().empty()) {
      if (!ptx) said_.push_back("bundle " + describe(bundle));
    } else {
      said_.push_back(fmt::format("bundle {} has no {} of it", bundle.path(), ptx ? "PTX" : "machine code"));
    }
    return false;
  }

  bool offer_disk(const std::string& key) {
    std::optional<std::string> bytes = sources_.cache.read(key);
    return bytes && offer("disk cache", {std::move(*bytes), name_, ImageKind::Cubin, KernelOrigin::Disk});
  }

  bool offer_compiled(const std::string& key, const KernelCompiler& compiler) {
    KernelImage image{{}, name_, ImageKind::Cubin, KernelOrigin::Compiled};
    try {
      image.bytes = compiler.compile(spec_).image;
    } catch (const EnvironmentError& error) {
      said_.push_back(first_line(error.what()));
      return false;
    }
    sources_.cache.write(key, image.bytes);
    return offer("compiled", image);
  }

  [[noreturn]] void fail(bool has_compiler) const {
    std::string fix = "see what the compiler said; a newer NVRTC knows newer GPUs";
    if (refused_) {
      fix = "update the NVIDIA driver: it refuses what was compiled";
    } else if (!has_compiler) {
      fix = "install NVIDIA's nvrtc package (nvidia-cuda-nvrtc), or set ONEPASS_NVRTC to libnvrtc.so.13";
    }
    throw EnvironmentError(format_message(
        "load kernel", fmt::format("{}: {}", name_, joined(said_, "; ")),
        "kernels that the bundle holds, or that NVRTC 12 or 13 compiles and the driver loads", fix));
  }

  const ImageSources& sources_;
  const KernelSpec& spec_;
  const TakeImage& take_;
  const std::string name_;
  std::vector<std::string> said_;
  bool refused_ = false;
};

}  // namespace

ImageSources process_image_sources() {
  const auto open_compiler = [] {
    KernelCompiler compiler;
    if (const Nvrtc* nvrtc = Nvrtc::instance(); nvrtc != nullptr) {
      compiler.version = nvrtc->version();
      compiler.compile = [nvrtc](const KernelSpec& spec) { return nvrtc->compile(spec); };
    } else {
      compiler.missing = Nvrtc::missing_reason();
    }
    return compiler;
  };
  const auto expect_compiler = [] {
    static const std::optional<CompilerVersion> version = nvrtc_version_by_name(config());
    return version;
  };
  return {&Bundle::shipped(), DiskCache(config().cache_folder), open_compiler, expect_compiler};
}

KernelOrigin find_image(const ImageSources& sources, const KernelSpec& spec, const TakeImage& take) {
  return Search(sources, spec, take).run();
}

}  // namespace onepass
