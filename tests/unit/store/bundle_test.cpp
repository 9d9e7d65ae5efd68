#include "store/bundle.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "store/bundle_writer.h"
#include "tests/unit/store/temporary_folder.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

constexpr std::uint64_t kSources = 42;

std::string text_of(char first, std::size_t size) {
  std::string text(size, first);
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(first + i % 13);
  return text;
}

BundleContent small_content() {
  return {kSources,
          13,
          0,
          {{text_of('a', 400), "kernel_one", ImageKind::Cubin, KernelOrigin::Compiled, 168},
           {text_of('A', 300), "kernel_two", ImageKind::Cubin, KernelOrigin::Compiled},
           {text_of('0', 200), "kernel_one", ImageKind::Ptx, KernelOrigin::Compiled}}};
}

class BundleFile {
 public:
  explicit BundleFile(const std::string& bytes) { write(bytes); }
  void write(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  std::string path() const { return (folder_.path / "kernels.bundle").string(); }
  Bundle open() const { return Bundle::open(path(), kSources); }

 private:
  TemporaryFolder folder_;
};

/// Every image is the right one or is not there; returns how many are there.
int num_readable(const Bundle& bundle) {
  int count = 0;
  for (const KernelImage& image : small_content().images) {
    const auto bytes = bundle.read(image.entry, image.kind);
    if (!bytes) continue;
    ++count;
    EXPECT_EQ(*bytes, image.bytes);
  }
  return count;
}

TEST(bundle, returns_what_was_written) {
  const BundleFile file(bundle_bytes(small_content()));
  const Bundle bundle = file.open();
  EXPECT_EQ(bundle.problem(), "");
  EXPECT_EQ(bundle.compiler(), "13.0");
  EXPECT_EQ(bundle.entries().size(), 3u);
  EXPECT_EQ(num_readable(bundle), 3);
  EXPECT_FALSE(bundle.read("kernel_two", ImageKind::Ptx).has_value());
  EXPECT_FALSE(bundle.read("kernel", ImageKind::Cubin).has_value());
  EXPECT_FALSE(bundle.read("zzz", ImageKind::Cubin).has_value());
  EXPECT_THAT(describe(bundle), HasSubstr("3 kernels (" + file.path()));
}

TEST(bundle, knows_the_registers_of_its_machine_code) {
  const BundleFile file(bundle_bytes(small_content()));
  const Bundle bundle = file.open();
  ASSERT_NE(bundle.find("kernel_one", ImageKind::Cubin), nullptr);
  EXPECT_EQ(bundle.find("kernel_one", ImageKind::Cubin)->registers, 168);
  EXPECT_EQ(bundle.find("kernel_one", ImageKind::Ptx)->registers, 0);
  EXPECT_EQ(bundle.find("kernel_two", ImageKind::Ptx), nullptr);
}

TEST(bundle, the_order_of_its_content_does_not_matter) {
  BundleContent content = small_content();
  std::reverse(content.images.begin(), content.images.end());
  EXPECT_EQ(bundle_bytes(content), bundle_bytes(small_content()));
}

TEST(bundle, without_kernels_is_valid) {
  const BundleFile file(bundle_bytes({kSources, 13, 0, {}}));
  EXPECT_EQ(file.open().problem(), "");
  EXPECT_FALSE(file.open().read("kernel_one", ImageKind::Cubin).has_value());
}

TEST(bundle, of_other_kernel_sources_is_not_used_and_says_so) {
  const BundleFile file(bundle_bytes(small_content()));
  const Bundle bundle = Bundle::open(file.path(), kSources + 1);
  EXPECT_TRUE(bundle.entries().empty());
  EXPECT_EQ(num_readable(bundle), 0);
  EXPECT_THAT(describe(bundle), HasSubstr("not used: it was made from other kernel sources"));
}

TEST(bundle, that_is_not_there_or_no_file_has_no_kernels) {
  const TemporaryFolder folder;
  for (const auto& path : {folder.path / "nothing", folder.path}) {
    const Bundle bundle = Bundle::open(path.string(), kSources);
    EXPECT_NE(bundle.problem(), "");
    EXPECT_EQ(num_readable(bundle), 0);
  }
  EXPECT_THAT(describe(Bundle::none("no file")), HasSubstr("none: no file"));
}

TEST(bundle, cut_off_anywhere_gives_whole_images_or_none) {
  const std::string whole = bundle_bytes(small_content());
  const BundleFile file(whole);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    file.write(whole.substr(0, size));
    EXPECT_LT(num_readable(file.open()), 3) << size;
  }
}

TEST(bundle, cut_off_after_it_was_opened_gives_whole_images_or_none) {
  const std::string whole = bundle_bytes(small_content());
  const BundleFile file(whole);
  const Bundle bundle = file.open();
  file.write(whole.substr(0, whole.size() - 1));
  EXPECT_EQ(num_readable(bundle), 2);
  file.write("");
  EXPECT_EQ(num_readable(bundle), 0);
}

TEST(bundle, with_any_byte_changed_gives_whole_images_or_none) {
  const std::string whole = bundle_bytes(small_content());
  const BundleFile file(whole);
  const std::size_t end_of_index =
      sizeof(BundleHeader) + 3 * (sizeof(BundleRecord) + sizeof("kernel_one") - 1);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {1, 128, 255}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      file.write(damaged);
      const Bundle bundle = file.open();
      if (at < end_of_index) {
        EXPECT_NE(bundle.problem(), "") << at;
        EXPECT_EQ(num_readable(bundle), 0) << at;
      } else {
        EXPECT_EQ(bundle.problem(), "") << at;
        EXPECT_GE(num_readable(bundle), 2) << at;  // a spare bit of the compressed form may change nothing
      }
    }
  }
}

TEST(bundle, with_bytes_after_its_end_is_what_it_was) {
  const BundleFile file(bundle_bytes(small_content()) + "tail");
  EXPECT_EQ(num_readable(file.open()), 3);
}

}  // namespace
}  // namespace onepass
