// The GPU kernel behind a step of a plan.
#pragma once

#include <atomic>

#include "store/kernel_spec.h"

namespace onepass {

struct LoadedKernel;  // store/store.h

struct PlannedKernel {
  explicit PlannedKernel(const KernelSpec& kernel) : spec(kernel) {}

  KernelSpec spec;
  /// What the last run of the plan launched, so that the next one on the same device need not ask the store,
  /// which keeps it for the life of the process. All copies of a plan share it.
  mutable std::atomic<const LoadedKernel*> loaded = nullptr;
};

}  // namespace onepass
