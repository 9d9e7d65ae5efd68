// Workspaces: what a caller gives is checked, and a call without one takes memory for itself.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "backends/cuda/host/stream_memory.h"
#include "plan/workspace.h"

namespace onepass {

/// @throws InvalidArgument unless `workspace` holds `needed` bytes from an aligned address.
void check_workspace(std::size_t needed, std::span<std::byte> workspace);

/// Memory of the tensors' device for the duration of a call.
class CallWorkspace {
 public:
  /// @throws std::bad_alloc, on a GPU EnvironmentError.
  CallWorkspace(const TensorView& q, std::size_t bytes, Stream stream);
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  struct AlignedDelete {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{kWorkspaceAlignment}); }
  };
  std::unique_ptr<std::byte[], AlignedDelete> host_;
  std::optional<cuda::StreamMemory> device_;
  std::span<std::byte> bytes_;
};

}  // namespace onepass
