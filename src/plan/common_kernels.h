// The kernels that the bundle holds: those that plans of common problems name, and that of merge().
#pragma once

#include <vector>

#include "store/kernel_image.h"
#include "store/kernel_spec.h"

namespace onepass {

struct CommonKernel {
  KernelSpec spec;
  ImageKind kind = ImageKind::Cubin;

  bool operator==(const CommonKernel&) const = default;
};

/// Machine code for the GPUs we know, and PTX for those we have not met, found by asking the planner about
/// common problems on invented devices; each kernel once, the same order every time.
std::vector<CommonKernel> common_kernels();

}  // namespace onepass
