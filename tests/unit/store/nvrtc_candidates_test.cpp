#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "store/nvrtc.h"
#include "tests/unit/store/temporary_folder.h"

namespace onepass {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Not;
using testing::TemporaryFolder;

std::string touch(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "";
  return path.string();
}

TEST(nvrtc_candidates, the_configured_path_comes_first) {
  Config config;
  config.nvrtc_path = "/somewhere/libnvrtc.so";
  EXPECT_EQ(nvrtc_candidates(config).front(), "/somewhere/libnvrtc.so");
  EXPECT_EQ(nvrtc_candidates({}).front(), "libnvrtc.so.13");
}

TEST(nvrtc_candidates, wheels_of_cuda_12_and_13_are_found_in_environments_and_the_users_folder) {
  for (std::string Config::*root : {&Config::virtual_env, &Config::conda_prefix, &Config::user_base}) {
    const TemporaryFolder folder;
    const fs::path packages = folder.path / "lib" / "python3.12" / "site-packages" / "nvidia";
    const std::string of_13 = touch(packages / "cu13" / "lib" / "libnvrtc.so.13");
    const std::string of_12 = touch(packages / "cuda_nvrtc" / "lib" / "libnvrtc.so.12");
    const std::string builtins = touch(packages / "cu13" / "lib" / "libnvrtc-builtins.so.13.0");
    Config config;
    config.*root = folder.path.string();
    const std::vector<std::string> found = nvrtc_candidates(config);
    EXPECT_THAT(found, Contains(of_13));
    EXPECT_THAT(found, Contains(of_12));
    EXPECT_THAT(found, Not(Contains(builtins)));
  }
}

TEST(nvrtc_candidates, packages_beside_the_librarys_own_are_searched) {
  const TemporaryFolder packages;
  const std::string neighbour = touch(packages.path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13");
  Config config;
  config.library_folder = (packages.path / "onepass").string();
  EXPECT_THAT(nvrtc_candidates(config), Contains(neighbour));
}

TEST(nvrtc_candidates, toolkits_and_conda_are_searched_and_the_newer_version_wins) {
  const TemporaryFolder toolkit, conda;
  const std::string old = touch(toolkit.path / "lib64" / "libnvrtc.so.12");
  const std::string fresh = touch(toolkit.path / "lib64" / "libnvrtc.so.13");
  const std::string of_conda = touch(conda.path / "lib" / "libnvrtc.so.12");
  Config config;
  config.cuda_home = toolkit.path.string();
  config.conda_prefix = conda.path.string();
  const std::vector<std::string> found = nvrtc_candidates(config);
  const auto place = [&](const std::string& path) { return std::find(found.begin(), found.end(), path); };
  EXPECT_LT(place(fresh), place(old));
  EXPECT_NE(place(old), found.end());
  EXPECT_NE(place(of_conda), found.end());
}

TEST(nvrtc_version_by_name, the_builtins_beside_the_library_say_it) {
  const TemporaryFolder folder;
  Config config;
  config.nvrtc_path = touch(folder.path / "libnvrtc.so.13");
  touch(folder.path / "libnvrtc-builtins.so.13.2");
  EXPECT_EQ(nvrtc_version_by_name(config), (CompilerVersion{13, 2}));
}

TEST(nvrtc_version_by_name, names_that_say_nothing_give_nothing) {
  const TemporaryFolder folder;
  Config config;
  config.nvrtc_path = touch(folder.path / "libnvrtc.so.13");
  const std::optional<CompilerVersion> elsewhere = nvrtc_version_by_name({});
  EXPECT_EQ(nvrtc_version_by_name(config), elsewhere);
  for (const char* name : {"libnvrtc-builtins.so.", "libnvrtc-builtins.so.13", "libnvrtc-builtins.so.x.y"}) {
    touch(folder.path / name);
    EXPECT_EQ(nvrtc_version_by_name(config), elsewhere) << name;
  }
}

}  // namespace
}  // namespace onepass
