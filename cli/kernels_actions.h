// One function per action of `onepass kernels`; the same contract as commands.h.
#pragma once

#include <string>
#include <string_view>

#include "cli/exit_status.h"
#include "cli/json_output.h"
#include "cli/options.h"
#include "store/kernel_image.h"
#include "store/kernel_spec.h"

namespace onepass::cli {

ExitStatus list_kernels(const CommandLine& line);
ExitStatus warm_kernels(const CommandLine& line);
ExitStatus clear_kernels(const CommandLine& line);
ExitStatus compile_kernels(const CommandLine& line);
ExitStatus bundle_kernels(const CommandLine& line);

/// --out of an action: tried before any work, written at its end; a signal leaves no temporary file behind.
/// @throws InvalidArgument or EnvironmentError as io::AtomicFile.
void try_out_file(const std::string& call, const std::string& path);
void write_out_file(const std::string& call, const std::string& path, std::string_view bytes);

/// "sm_90a", "compute_80".
std::string architecture_text(const KernelSpec& spec, ImageKind kind);

/// The shipped bundle and the disk cache, for `kernels list` and `info`.
std::string bundle_text();
std::string cache_text();
Json bundle_to_json();
Json cache_to_json();

}  // namespace onepass::cli
