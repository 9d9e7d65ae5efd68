// The units of this CPU that multiply bf16 into f32 sums, each as a loop that does nothing else.
#pragma once

#include <span>

namespace onepass::cli {

struct MatrixUnit {
  const char* name;
  /// Runs `iterations` of products that stay in registers; returns their FLOPs. Touches sink[0], so that the
  /// compiler keeps the work.
  double (*multiply_add)(long iterations, float* sink);
};

/// Those that this machine and its operating system let this process use; may be empty.
std::span<const MatrixUnit> bf16_units();

}  // namespace onepass::cli
