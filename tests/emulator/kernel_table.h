// The kernels in this program, written by write_kernels.cpp from the plans of cases.h.
#pragma once

#include <span>

#include "backends/cuda/kernels/params.h"

namespace onepass::emulator {

struct EmulatedKernel {
  const char* name;  // kernel_name(spec)
  void (*entry)(cuda::ForwardParams params);
};

std::span<const EmulatedKernel> kernel_table();

}  // namespace onepass::emulator
