// Tensors of host memory in the memory of an NVIDIA GPU, between guards that show stray reads and writes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onepass/tensor_view.h"

namespace onepass::verify {

/// Device memory between two guards of poison. Everything starts as poison.
class GuardedDeviceBuffer {
 public:
  /// @throws EnvironmentError without a GPU or enough of its memory.
  GuardedDeviceBuffer(std::size_t bytes, int device_idx);
  ~GuardedDeviceBuffer();
  GuardedDeviceBuffer(GuardedDeviceBuffer&& other) noexcept;
  GuardedDeviceBuffer(const GuardedDeviceBuffer&) = delete;
  GuardedDeviceBuffer& operator=(const GuardedDeviceBuffer&) = delete;

  /// Aligned to 256 bytes.
  std::byte* data() const { return base_ + kGuardBytes; }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data(), bytes_}; }
  void upload(const void* host) const;
  /// Waits for the GPU's default stream.
  void download(void* host) const;
  bool guards_intact() const;

 private:
  static constexpr std::size_t kGuardBytes = 1024;

  bool guard_intact(const std::byte* guard) const;

  std::byte* base_ = nullptr;
  std::size_t bytes_;
  int device_idx_;
};

/// Copies of the memory that views span. Where views share memory, so do their copies.
class DeviceCopies {
 public:
  /// Views that have elements lead into the copies afterwards; all present ones are marked as memory of that
  /// GPU. A copy starts aligned, wherever the original starts. @throws EnvironmentError.
  DeviceCopies(std::span<TensorView* const> views, int device_idx);

  /// Copies host memory to the GPU again.
  void upload() const;
  /// Waits and copies everything back to where it came from. Returns what beside the tensors was written;
  /// empty when nothing.
  std::optional<std::string> copy_back() const;

 private:
  struct Region {
    std::byte *begin, *end;  // in host memory
  };
  std::vector<Region> regions_;
  std::vector<GuardedDeviceBuffer> buffers_;  // one per region
};

}  // namespace onepass::verify
