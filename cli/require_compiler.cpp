#include "cli/require_compiler.h"

#include "support/message.h"

namespace onepass::cli {

const Nvrtc& require_compiler(const std::string& call) {
  if (const Nvrtc* nvrtc = Nvrtc::instance(); nvrtc != nullptr) return *nvrtc;
  throw EnvironmentError(format_message(
      call, Nvrtc::missing_reason(), "NVRTC 12 or 13",
      "install NVIDIA's nvrtc package (nvidia-cuda-nvrtc), or set ONEPASS_NVRTC to libnvrtc.so.13"));
}

}  // namespace onepass::cli
