// Merging two partial results on an NVIDIA GPU (spec section 3).
#pragma once

#include "onepass/attention.h"

namespace onepass::cuda {

/// Arguments are checked already, but for their addresses. Returns when the kernel is queued on the stream.
/// @throws InvalidArgument for an address that is not memory of the call's device, NotSupported for more rows
///   than one grid holds, EnvironmentError when the driver fails; nothing is launched then.
void merge(const MergeArguments& args, Stream stream);

}  // namespace onepass::cuda
