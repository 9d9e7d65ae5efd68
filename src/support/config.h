// The environment as a value; the only place that reads environment variables.
#pragma once

#include <string>

namespace onepass {

struct Config {
  std::string nvrtc_path;  ///< ONEPASS_NVRTC: full path of libnvrtc, tried first
  /// ONEPASS_CACHE_DIR, else XDG_CACHE_HOME/onepass, else ~/.cache/onepass; may be empty
  std::string cache_folder;
  std::string bundle_path;     ///< ONEPASS_BUNDLE: the kernel bundle, instead of the one beside the library
  std::string cuda_home;       ///< CUDA_HOME, else CUDA_PATH
  std::string virtual_env;     ///< VIRTUAL_ENV
  std::string conda_prefix;    ///< CONDA_PREFIX
  std::string library_folder;  ///< where this library is; in a Python package, its neighbours are NVIDIA's
  std::string user_base;       ///< PYTHONUSERBASE, else ~/.local: where `pip install --user` puts packages
};

/// Read once per process.
const Config& config();

}  // namespace onepass
