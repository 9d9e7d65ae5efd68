#include "store/disk_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/store/temporary_folder.h"

namespace onepass {
namespace {

using testing::TemporaryFolder;

namespace fs = std::filesystem;

fs::path entry_of(const TemporaryFolder& folder, const std::string& key) {
  return folder.path / (key + ".cubin");
}

std::ptrdiff_t num_files(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator{});
}

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
  const auto whole = fs::file_size(entry_of(folder, "kernel"));
  for (std::uintmax_t size = 0; size < whole; ++size) {
    fs::resize_file(entry_of(folder, "kernel"), size);
    EXPECT_FALSE(cache.read("kernel").has_value()) << size;
    ASSERT_TRUE(cache.write("kernel", image_of('a', 300)));
  }
  {
    std::fstream file(entry_of(folder, "kernel"), std::ios::in | std::ios::out | std::ios::binary);
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
  EXPECT_EQ(num_files(folder.path), 1) << "temporary files stay";
}

/// Files of this process end after `bytes`, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(disk_cache, a_full_disk_fails_quietly_and_leaves_nothing_behind) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path);
  for (const rlim_t room : {0, 10, 4096}) {
    const FullDisk disk(room);
    EXPECT_FALSE(cache.write("kernel", image_of('a', 20000))) << room;
  }
  EXPECT_FALSE(cache.read("kernel").has_value());
  EXPECT_EQ(num_files(folder.path), 0);
  EXPECT_TRUE(cache.write("kernel", image_of('a', 20000)));
}

TEST(disk_cache, a_full_disk_keeps_the_entry_that_is_there) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path);
  ASSERT_TRUE(cache.write("kernel", image_of('a', 20000)));
  const FullDisk disk(4096);
  EXPECT_FALSE(cache.write("kernel", image_of('b', 20000)));
  EXPECT_EQ(cache.read("kernel"), image_of('a', 20000));
}

TEST(disk_cache, lists_its_entries_by_name) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path);
  EXPECT_TRUE(cache.entries().empty());
  cache.write("two", image_of('b', 10));
  cache.write("one", image_of('a', 300));
  std::ofstream(folder.path / "README") << "not ours";
  const auto entries = cache.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].key, "one");
  EXPECT_EQ(entries[0].bytes, fs::file_size(entry_of(folder, "one")));
  EXPECT_EQ(entries[1].key, "two");
}

TEST(disk_cache, clear_removes_what_a_killed_process_left_and_nothing_else) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path);
  cache.write("one", image_of('a', 10));
  std::ofstream(folder.path / ".writing.two.123.0") << "half";
  std::ofstream(folder.path / "README") << "not ours";
  EXPECT_EQ(cache.clear(), 1);
  EXPECT_EQ(num_files(folder.path), 1);
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
  EXPECT_NE(cache_key(spec, {13, 0}), cache_key(other, {13, 0}));
  EXPECT_NE(cache_key(spec, {13, 0}), cache_key(spec, {12, 9}));
  EXPECT_EQ(cache_key(spec, {13, 0}), cache_key(spec, {13, 0}));
}

}  // namespace
}  // namespace onepass
