#include "store/disk_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace onepass {
namespace {

namespace fs = std::filesystem;

struct TemporaryFolder {
  fs::path path;
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "onepass-cache-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { fs::remove_all(path); }
  fs::path entry(const std::string& key) const { return path / (key + ".cubin"); }
};

std::string image_of(char fill, std::size_t size) { return std::string(size, fill); }

TEST(disk_cache, returns_what_was_written) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path / "deeper" / "still");
  EXPECT_FALSE(cache.read("kernel").has_value());
  EXPECT_TRUE(cache.write("kernel", image_of('a', 5000)));
  EXPECT_EQ(cache.read("kernel"), image_of('a', 5000));
}

TEST(disk_cache, a_truncated_or_changed_entry_is_no_entry) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path);
  ASSERT_TRUE(cache.write("kernel", image_of('a', 300)));
  const auto whole = fs::file_size(folder.entry("kernel"));
  for (std::uintmax_t size = 0; size < whole; ++size) {
    fs::resize_file(folder.entry("kernel"), size);
    EXPECT_FALSE(cache.read("kernel").has_value()) << size;
    ASSERT_TRUE(cache.write("kernel", image_of('a', 300)));
  }
  {
    std::fstream file(folder.entry("kernel"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('b');
  }
  EXPECT_FALSE(cache.read("kernel").has_value());
}

TEST(disk_cache, a_folder_that_cannot_be_written_fails_quietly) {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "file") << "not a folder";
  const DiskCache cache((folder.path / "file").string());
  EXPECT_FALSE(cache.write("kernel", image_of('a', 10)));
  EXPECT_FALSE(cache.read("kernel").has_value());
  const DiskCache none("");
  EXPECT_FALSE(none.write("kernel", image_of('a', 10)));
  EXPECT_FALSE(none.read("kernel").has_value());
}

TEST(disk_cache, writers_and_readers_of_one_entry_see_whole_images_only) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path);
  std::atomic<int> wrong{0}, seen{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        cache.write("kernel", image_of(static_cast<char>('a' + t), 20000));
        if (const auto image = cache.read("kernel")) {
          ++seen;
          if (*image != image_of(image->front(), 20000)) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(seen, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator{}), 1)
      << "temporary files stay";
}

TEST(disk_cache, clear_removes_every_entry) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path);
  cache.write("one", image_of('a', 10));
  cache.write("two", image_of('b', 10));
  EXPECT_EQ(cache.clear(), 2);
  EXPECT_FALSE(cache.read("one").has_value());
}

TEST(disk_cache, the_key_changes_with_spec_and_compiler) {
  KernelSpec spec;
  spec.head_dim = spec.head_dim_v = 64;
  spec.tile_m = spec.tile_n = 64;
  KernelSpec other = spec;
  other.stages = 2;
  EXPECT_NE(cache_key(spec, 13, 0), cache_key(other, 13, 0));
  EXPECT_NE(cache_key(spec, 13, 0), cache_key(spec, 12, 9));
  EXPECT_EQ(cache_key(spec, 13, 0), cache_key(spec, 13, 0));
}

}  // namespace
}  // namespace onepass
