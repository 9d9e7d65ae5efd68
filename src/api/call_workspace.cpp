#include "api/call_workspace.h"

#include <fmt/format.h>

#include <cstdint>

#include "support/message.h"

namespace onepass {

void check_workspace(std::size_t needed, std::span<std::byte> workspace) {
  if (workspace.size() < needed) {
    throw_invalid("run", fmt::format("workspace has {} bytes", workspace.size()),
                  fmt::format("at least plan.workspace_bytes() = {} bytes", needed),
                  "allocate plan.workspace_bytes() bytes");
  }
  if (needed > 0 && reinterpret_cast<std::uintptr_t>(workspace.data()) % kWorkspaceAlignment != 0) {
    throw_invalid("run", "workspace starts at an address that is no multiple of 64",
                  "an address aligned to 64 bytes",
                  "allocate it with std::aligned_alloc or operator new with std::align_val_t{64}");
  }
}

CallWorkspace::CallWorkspace(const TensorView& q, std::size_t bytes, Stream stream) {
  if (q.device == DeviceKind::Cuda) {
    device_.emplace(q.device_idx, bytes, stream);
    bytes_ = device_->bytes();
    return;
  }
  host_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kWorkspaceAlignment})));
  bytes_ = {host_.get(), bytes};
}

}  // namespace onepass
