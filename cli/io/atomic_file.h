// A file that appears at its place complete, or not at all.
#pragma once

#include <string>

#include "io/byte_sink.h"
#include "io/file_context.h"

namespace onepass::io {

/// Writes to a temporary file in the folder of the final one. commit() moves it there; without commit() the
/// destructor removes it.
class AtomicFile final : public ByteSink {
 public:
  /// @throws InvalidArgument when the folder does not exist or takes no file, or when something other than a
  ///   regular file that this user may write stands at the path. A symbolic link is followed.
  explicit AtomicFile(const FileContext& context);
  ~AtomicFile() override;

  /// @throws EnvironmentError when the system cannot write.
  void write(std::span<const std::byte> bytes) override;
  /// Waits until the bytes are on the disk; after this, commit() only renames.
  void finish();
  /// Replaces what is at the path. @throws EnvironmentError.
  void commit();

 private:
  [[noreturn]] void fail_system(const char* what, int error) const;

  FileContext context_;
  std::string final_path_;
  std::string temporary_path_;
  int descriptor_ = -1;
};

}  // namespace onepass::io
