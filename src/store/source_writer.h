// From a KernelSpec to the few lines of CUDA C++ that instantiate it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/kernel_spec.h"

namespace onepass {

/// `struct Spec` with the spec's constants, the assertions that host and device agree, and an extern "C"
/// entry whose name is kernel_name(spec). Includes the family's text by its path inside the kernel folder.
std::string write_source(const KernelSpec& spec);

/// A file of the kernel folder, embedded at build time.
struct KernelFile {
  std::string_view path;  // "sm80/forward.cuh"
  std::string_view text;
};
std::span<const KernelFile> kernel_files();

/// Hash of everything that an image depends on but spec and compiler: the kernel folder, the writer's own
/// lines, the options. An edit anywhere makes the bundle and every cache entry stale.
std::uint64_t sources_hash();

/// Options for the compiler; the same for the bundle and at run time.
std::vector<std::string> compile_options(const KernelSpec& spec);

}  // namespace onepass
