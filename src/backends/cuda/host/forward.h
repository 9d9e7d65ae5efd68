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

/// The same for a plan of make_mixed_plan: launches over one packed batch.
void run_mixed(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace, Stream stream);

/// The GPU as a planning value; the driver is asked once per process. @throws EnvironmentError without a
/// driver, InvalidArgument without such a device.
const DeviceInfo& device_info(int device_idx, const char* call = "plan");

}  // namespace onepass::cuda
