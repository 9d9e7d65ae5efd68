// Device memory that a call takes for itself.
#pragma once

#include <cstddef>
#include <span>

#include "onepass/attention.h"

namespace onepass::cuda {

/// Device memory for the duration of a call, ordered on its stream.
class StreamMemory {
 public:
  /// @throws EnvironmentError.
  StreamMemory(int device_idx, std::size_t bytes, Stream stream);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  std::span<std::byte> bytes() const { return memory_; }

  /// Whether `pointer` lies in memory that this thread's call has. The driver cannot always tell: what is
  /// taken while the stream is captured exists when the graph runs.
  static bool holds(const void* pointer);

 private:
  int device_idx_;
  Stream stream_;
  std::span<std::byte> memory_;
};

}  // namespace onepass::cuda
