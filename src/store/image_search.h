// Which source gives a kernel's image: the bundle, the disk cache, the compiler, and last PTX of the bundle.
// Pure but for the files: what loads an image is an argument, so the order is tested without a GPU.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "store/bundle.h"
#include "store/disk_cache.h"
#include "store/kernel_image.h"
#include "store/kernel_spec.h"
#include "store/nvrtc.h"

namespace onepass {

struct KernelCompiler {
  CompilerVersion version;
  std::function<CompiledKernel(const KernelSpec&)> compile;  // empty when there is no compiler
  std::string missing;                                       // why, then
};

struct ImageSources {
  const Bundle* bundle = nullptr;  // never null; may be Bundle::none
  DiskCache cache{""};
  /// Called when neither bundle nor cache have a kernel: it takes time.
  std::function<KernelCompiler()> open_compiler;
  /// The version that open_compiler will find, as far as a look at file names tells.
  std::function<std::optional<CompilerVersion>()> expect_compiler;
};

/// Those of this process: the shipped bundle, config()'s cache folder, NVRTC.
ImageSources process_image_sources();

/// Takes an image (loads it) and returns nothing, or says why it cannot.
using TakeImage = std::function<std::optional<std::string>(const KernelImage&)>;

/// Offers images in the order above until one is taken; a compiled image is written to the cache first.
/// @throws EnvironmentError with what each source said when none is taken.
KernelOrigin find_image(const ImageSources& sources, const KernelSpec& spec, const TakeImage& take);

}  // namespace onepass
