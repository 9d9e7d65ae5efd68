// Bytes to parse: a file, or memory (tests and fuzzing).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/file_context.h"

namespace onepass::io {

class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  virtual std::uint64_t size() const = 0;
  /// Fills `out` with the bytes from `offset`; offset + out.size() <= size().
  virtual void read(std::uint64_t offset, std::span<std::byte> out) const = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::span<const std::byte> bytes_;
};

/// A regular file. Reads copy straight from the system into `out`; mapping was declined because a mapped file
/// that somebody truncates ends the process with SIGBUS, and because tensors in it need not be aligned.
class FileSource final : public ByteSource {
 public:
  /// @throws InvalidArgument when the file does not exist, is not a regular file or cannot be opened.
  explicit FileSource(const FileContext& context);
  ~FileSource() override;
  std::uint64_t size() const override { return size_; }
  /// @throws InvalidArgument when the file became shorter, EnvironmentError when the system cannot read it.
  void read(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  FileContext context_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace onepass::io
