#include "api/environment_text.h"

#include <fmt/format.h>

#include "backends/cuda/host/driver.h"
#include "store/nvrtc.h"

namespace onepass {

std::string gpus_text() {
  const cuda::Driver* driver = cuda::Driver::instance();
  if (driver == nullptr) return "none: " + cuda::Driver::missing_reason();
  std::string text;
  for (int i = 0; i < driver->num_devices(); ++i) {
    const int capability = driver->compute_capability(i);
    text += fmt::format("{}{} (compute capability {}.{})", i == 0 ? "" : ", ", driver->device_name(i),
                        capability / 10, capability % 10);
  }
  return text +
         fmt::format("; driver for CUDA {}.{}", driver->version() / 1000, driver->version() % 1000 / 10);
}

std::string compiler_text() {
  const Nvrtc* nvrtc = Nvrtc::instance();
  if (nvrtc == nullptr) return Nvrtc::missing_reason();
  return fmt::format("NVRTC {}.{} ({})", nvrtc->version().major, nvrtc->version().minor, nvrtc->path());
}

}  // namespace onepass
