#include "support/config.h"

#include <cstdlib>
#include <filesystem>

#include "support/shared_object.h"

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

std::string cuda_home() {
  if (std::string folder = variable("CUDA_HOME"); !folder.empty()) return folder;
  return variable("CUDA_PATH");
}

std::string user_base() {
  if (std::string folder = variable("PYTHONUSERBASE"); !folder.empty()) return folder;
  if (std::string home = variable("HOME"); !home.empty()) return home + "/.local";
  return "";
}

}  // namespace

const Config& config() {
  static const Config values{.nvrtc_path = variable("ONEPASS_NVRTC"),
                             .cache_folder = cache_folder(),
                             .bundle_path = variable("ONEPASS_BUNDLE"),
                             .cuda_home = cuda_home(),
                             .virtual_env = variable("VIRTUAL_ENV"),
                             .conda_prefix = variable("CONDA_PREFIX"),
                             .library_folder = std::filesystem::path(this_binary()).parent_path().string(),
                             .user_base = user_base()};
  return values;
}

}  // namespace onepass
