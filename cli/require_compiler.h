// NVRTC, for the actions that are nothing without it.
#pragma once

#include <string>

#include "store/nvrtc.h"

namespace onepass::cli {

/// @throws EnvironmentError saying where it was looked for.
const Nvrtc& require_compiler(const std::string& call);

}  // namespace onepass::cli
