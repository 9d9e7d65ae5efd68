// Forward on an NVIDIA GPU: checks pointers, fills ForwardParams, launches the plan's kernels.
#pragma once

#include <cstddef>
#include <span>

#include "onepass/attention.h"

namespace onepass::cuda {

/// `workspace` is device memory. Returns when the kernels are queued on the stream.
/// @throws InvalidArgument for a pointer that is not memory of the call's device or not aligned as the plan's
///   kernel reads it, EnvironmentError when the driver fails; nothing is launched then.
void run_forward(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace,
                 Stream stream);

/// The same for a plan of make_mixed_plan: two launches over one packed batch.
void run_mixed(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace, Stream stream);

/// The GPU as a planning value; the driver is asked once per process. @throws EnvironmentError without a
/// driver, InvalidArgument without such a device.
const DeviceInfo& device_info(int device_idx, const char* call = "plan");

/// Device memory for the duration of a call, ordered on its stream.
class StreamMemory {
 public:
  StreamMemory(int device_idx, std::size_t bytes, Stream stream);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  std::span<std::byte> bytes() const { return memory_; }

 private:
  int device_idx_;
  Stream stream_;
  std::span<std::byte> memory_;
};

}  // namespace onepass::cuda
