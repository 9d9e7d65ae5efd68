#include "support/config.h"

#include <cstdlib>

namespace onepass {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string cache_folder() {
  if (std::string folder = variable("ONEPASS_CACHE_DIR"); !folder.empty()) return folder;
  if (std::string folder = variable("XDG_CACHE_HOME"); !folder.empty()) return folder + "/onepass";
  if (std::string home = variable("HOME"); !home.empty()) return home + "/.cache/onepass";
  return "";
}

}  // namespace

const Config& config() {
  static const Config values{variable("ONEPASS_NVRTC"), cache_folder(), variable("ONEPASS_BUNDLE"),
                             variable("CUDA_HOME"), variable("VIRTUAL_ENV")};
  return values;
}

}  // namespace onepass
