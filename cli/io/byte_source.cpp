#include "io/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace onepass::io {
namespace {

// Linux transfers at most 0x7ffff000 bytes per call.
constexpr std::size_t kMaxTransferBytes = std::size_t{1} << 30;

}  // namespace

void MemorySource::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

FileSource::FileSource(const FileContext& context) : context_(context) {
  // O_NONBLOCK: opening a named pipe returns at once instead of waiting for a writer.
  descriptor_ = ::open(context_.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    context_.fail(fmt::format("cannot be opened: {}", std::generic_category().message(errno)),
                  "an existing file that this user may read", "correct the path or the permissions");
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    const bool folder = S_ISDIR(status.st_mode);
    ::close(descriptor_);  // the destructor does not run when a constructor throws
    context_.fail(folder ? "is a folder" : "is not a regular file",
                  "a regular file (no folder, pipe or device)",
                  "name a file; save what comes from a pipe first");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::~FileSource() { ::close(descriptor_); }

void FileSource::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count =
        ::pread(descriptor_, out.data(), std::min(out.size(), kMaxTransferBytes), static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      context_.fail_environment(fmt::format("cannot be read: {}", std::generic_category().message(errno)),
                                "a file on a disk that works", "check the disk, then try again");
    }
    if (count == 0) {
      context_.fail(fmt::format("became shorter than {} bytes while it was read", size_),
                    "a file that nobody changes meanwhile",
                    "wait for the program that writes it, then try again");
    }
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace onepass::io
