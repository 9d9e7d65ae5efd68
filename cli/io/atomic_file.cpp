#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace onepass::io {
namespace {

// Linux transfers at most 0x7ffff000 bytes per call.
constexpr std::size_t kMaxTransferBytes = std::size_t{1} << 30;
constexpr mode_t kDefaultMode = 0666;  // before the umask
constexpr mode_t kPermissions = 0777;

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace

AtomicFile::AtomicFile(const FileContext& context) : context_(context), final_path_(context.path) {
  const std::string allowed = "a path in an existing folder in which this user may create files";
  struct stat status {};
  const bool exists = ::stat(final_path_.c_str(), &status) == 0;
  if (exists) {
    if (!S_ISREG(status.st_mode)) {
      context_.fail(S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file",
                    "a new path, or a regular file to replace", "name a file");
    }
    if (::access(final_path_.c_str(), W_OK) != 0) {
      context_.fail(fmt::format("exists and cannot be written: {}", error_text(errno)),
                    "a new path, or a writable file to replace", "name another file");
    }
    std::error_code ignored;  // an unresolvable path stays as it is: stat just followed it
    const std::filesystem::path resolved = std::filesystem::canonical(final_path_, ignored);
    if (!ignored) final_path_ = resolved.string();
  }
  static std::atomic<unsigned> counter{0};
  const std::filesystem::path place(final_path_);
  do {
    const std::string name =
        fmt::format(".{}.{}.{}.tmp", place.filename().string(), ::getpid(), counter.fetch_add(1));
    temporary_path_ = (place.parent_path() / name).string();
    descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kDefaultMode);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    context_.fail(fmt::format("cannot be created: {}", error_text(errno)), allowed,
                  "create the folder, correct its permissions, or name another path");
  }
  // A replaced file keeps its permissions; where the file system has none to set, there are none to lose.
  if (exists) static_cast<void>(::fchmod(descriptor_, status.st_mode & kPermissions));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

void AtomicFile::fail_system(const char* what, int error) const {
  context_.fail_environment(fmt::format("cannot be {}: {}", what, error_text(error)),
                            "a disk with room for the file", "free space or name a path on another disk");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxTransferBytes));
    if (count < 0) {
      if (errno == EINTR) continue;
      fail_system("written", errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::finish() {
  // EINVAL: the file system has nothing to flush.
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail_system("written", errno);
  // Some systems report a full disk only here.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_system("written", errno);
}

void AtomicFile::commit() {
  if (std::rename(temporary_path_.c_str(), final_path_.c_str()) != 0) fail_system("put in place", errno);
  temporary_path_.clear();
}

}  // namespace onepass::io
