#include "store/image_search.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <vector>

#include "onepass/error.h"
#include "store/bundle_writer.h"
#include "tests/unit/store/temporary_folder.h"

namespace onepass {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

constexpr std::uint64_t kSources = 42;

KernelSpec spec_for(int architecture) {
  KernelSpec spec;
  spec.architecture = architecture;
  spec.head_dim = spec.head_dim_v = 64;
  spec.tile_m = spec.tile_n = 64;
  return spec;
}

/// Sources without a GPU, a compiler or a user's folders; a loader that refuses what it is told to.
class Sources {
 public:
  Sources() { sources.cache = DiskCache((folder_.path / "cache").string()); }

  void ship(const std::vector<KernelImage>& images) {
    const std::string path = (folder_.path / "kernels.bundle").string();
    std::ofstream(path, std::ios::binary) << bundle_bytes({kSources, 13, 0, images});
    bundle_ = Bundle::open(path, kSources);
  }
  void install_compiler(bool works = true) {
    compiler_ = {};
    compiler_.version = {13, 0};
    compiler_.compile = [this, works](const KernelSpec& spec) -> CompiledKernel {
      ++num_compiled;
      if (!works)
        throw EnvironmentError("compile kernel: it has an error on line 7.\n  Allowed: a.\n  Fix: b.");
      return {"compiled " + kernel_name(spec), "", {}};
    };
  }
  void fill_cache(const KernelSpec& spec) { sources.cache.write(cache_key(spec, {13, 0}), "cached"); }

  KernelOrigin find(const KernelSpec& spec) {
    offered.clear();
    return find_image(sources, spec, [&](const KernelImage& image) -> std::optional<std::string> {
      offered.push_back(image.bytes);
      entry = image.entry;
      if (image.bytes == refuses || refuses == "all") return "the driver is older than this";
      return std::nullopt;
    });
  }
  std::string failure(const KernelSpec& spec) {
    try {
      find(spec);
    } catch (const EnvironmentError& error) {
      return error.what();
    }
    return "it was found";
  }

 private:
  TemporaryFolder folder_;
  Bundle bundle_ = Bundle::none("no file");
  KernelCompiler compiler_{{}, {}, "no NVRTC found (tried here and there)"};

 public:
  ImageSources sources{&bundle_, DiskCache(""),
                       [this] {
                         ++num_opened;
                         return compiler_;
                       },
                       [this] { return expected; }};
  std::optional<CompilerVersion> expected;
  std::string refuses, entry;
  std::vector<std::string> offered;
  int num_opened = 0, num_compiled = 0;
};

KernelImage image_of(const KernelSpec& spec, ImageKind kind, const std::string& bytes) {
  return {bytes, kernel_name(spec), kind, KernelOrigin::Compiled};
}

const KernelSpec kHopper = spec_for(90), kUnknown = spec_for(120), kPortable = spec_for(80);

TEST(image_search, the_bundle_is_asked_first_and_nobody_else) {
  Sources s;
  s.ship({image_of(kHopper, ImageKind::Cubin, "shipped")});
  s.install_compiler();
  s.fill_cache(kHopper);
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Bundle);
  EXPECT_THAT(s.offered, ElementsAre("shipped"));
  EXPECT_EQ(s.num_opened, 0) << "looking for the compiler takes longer than the bundle";
}

TEST(image_search, the_bundle_alone_serves_without_a_compiler) {
  Sources s;
  s.ship({image_of(kHopper, ImageKind::Cubin, "shipped")});
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Bundle);
  EXPECT_EQ(s.entry, kernel_name(kHopper));
}

TEST(image_search, the_cache_comes_second) {
  Sources s;
  s.install_compiler();
  s.fill_cache(kHopper);
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Disk);
  EXPECT_EQ(s.num_compiled, 0);
}

TEST(image_search, a_compiler_whose_version_is_known_is_not_opened_for_the_cache) {
  Sources s;
  s.install_compiler();
  s.fill_cache(kHopper);
  s.expected = CompilerVersion{13, 0};
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Disk);
  EXPECT_EQ(s.num_opened, 0);
  s.expected = CompilerVersion{12, 9};  // a wrong guess
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Disk);
  EXPECT_EQ(s.num_opened, 1);
}

TEST(image_search, a_compiled_image_is_cached_for_the_next_process) {
  Sources s;
  s.install_compiler();
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Compiled);
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Disk);
  EXPECT_THAT(s.offered, ElementsAre("compiled " + kernel_name(kHopper)));
  EXPECT_EQ(s.num_compiled, 1);
}

TEST(image_search, a_cache_that_takes_nothing_fails_nothing) {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "file") << "not a folder";
  for (const std::string& cache : {std::string(), (folder.path / "file" / "cache").string()}) {
    Sources s;
    s.install_compiler();
    s.sources.cache = DiskCache(cache);
    EXPECT_EQ(s.find(kHopper), KernelOrigin::Compiled);
    EXPECT_EQ(s.find(kHopper), KernelOrigin::Compiled);
  }
}

TEST(image_search, a_truncated_cache_entry_is_compiled_again_and_replaced) {
  Sources s;
  s.install_compiler();
  s.fill_cache(kHopper);
  const std::string file = s.sources.cache.folder() + "/" + cache_key(kHopper, {13, 0}) + ".cubin";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Compiled);
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Disk);
}

TEST(image_search, an_entry_of_another_compiler_is_not_used) {
  Sources s;
  s.install_compiler();
  s.sources.cache.write(cache_key(kHopper, {12, 9}), "of CUDA 12");
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Compiled);
}

TEST(image_search, machine_code_is_compiled_before_the_portable_form_is_used) {
  Sources s;
  s.ship({image_of(kPortable, ImageKind::Ptx, "portable")});
  s.install_compiler();
  EXPECT_EQ(s.find(kUnknown), KernelOrigin::Compiled);
}

TEST(image_search, a_gpu_we_have_not_met_gets_ptx_under_the_name_it_was_compiled_with) {
  Sources s;
  s.ship({image_of(kPortable, ImageKind::Ptx, "portable"), image_of(kPortable, ImageKind::Cubin, "ampere")});
  EXPECT_EQ(s.find(kUnknown), KernelOrigin::Bundle);
  EXPECT_THAT(s.offered, ElementsAre("portable"));
  EXPECT_EQ(s.entry, kernel_name(kPortable));
}

TEST(image_search, a_compiler_that_fails_leaves_the_portable_form) {
  Sources s;
  s.ship({image_of(kPortable, ImageKind::Ptx, "portable")});
  s.install_compiler(false);
  EXPECT_EQ(s.find(kUnknown), KernelOrigin::Bundle);
}

TEST(image_search, what_the_driver_refuses_is_replaced_by_the_next_source) {
  Sources s;
  s.ship({image_of(kHopper, ImageKind::Cubin, "shipped"), image_of(kPortable, ImageKind::Ptx, "portable")});
  s.install_compiler();
  s.refuses = "shipped";
  EXPECT_EQ(s.find(kHopper), KernelOrigin::Compiled);
  EXPECT_THAT(s.offered, ElementsAre("shipped", "compiled " + kernel_name(kHopper)));
}

TEST(image_search, a_failure_lists_what_each_source_said) {
  Sources s;
  s.ship({image_of(kHopper, ImageKind::Cubin, "shipped"), image_of(kPortable, ImageKind::Ptx, "portable")});
  s.install_compiler();
  s.fill_cache(kHopper);
  s.refuses = "all";
  const std::string text = s.failure(kHopper);
  EXPECT_THAT(s.offered, ElementsAre("shipped", "cached", "compiled " + kernel_name(kHopper), "portable"));
  for (const char* part :
       {"load kernel: sm80_forward", "bundle: the driver is older", "disk cache: the driver",
        "compiled: the driver", "bundle, PTX: the driver", "Fix: update the NVIDIA driver"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(image_search, without_bundle_and_compiler_the_failure_says_what_to_install) {
  Sources s;
  const std::string text = s.failure(kHopper);
  EXPECT_THAT(text, HasSubstr("bundle none: no file; no NVRTC found (tried here and there)"));
  EXPECT_THAT(text, HasSubstr("Fix: install NVIDIA's nvrtc package"));
}

TEST(image_search, a_kernel_outside_the_bundle_names_the_bundle) {
  Sources s;
  s.ship({image_of(kPortable, ImageKind::Cubin, "ampere")});
  const std::string text = s.failure(kHopper);
  EXPECT_THAT(text, HasSubstr("kernels.bundle has no machine code of it"));
  EXPECT_THAT(text, HasSubstr("kernels.bundle has no PTX of it"));
}

TEST(image_search, a_compile_failure_is_shown_with_its_first_line) {
  Sources s;
  s.install_compiler(false);
  EXPECT_THAT(s.failure(kHopper), HasSubstr("compile kernel: it has an error on line 7.\n  Allowed"));
}

}  // namespace
}  // namespace onepass
