// The GPU kernel behind a step of a plan.
#pragma once

#include <atomic>

#include "dispatch/heuristics_decode.h"
#include "dispatch/heuristics_sm90.h"
#include "dispatch/heuristics_sm90_backward.h"
#include "store/kernel_spec.h"

namespace onepass {

struct LoadedKernel;  // store/store.h

struct PlannedKernel {
  explicit PlannedKernel(const KernelSpec& kernel) : spec(kernel) {}
  PlannedKernel(const KernelSpec& kernel, const Sm90TileOrder& order) : spec(kernel), sm90_order(order) {}
  PlannedKernel(const KernelSpec& kernel, const Sm90BackwardOrder& order)
      : spec(kernel), sm90_backward_order(order) {}
  PlannedKernel(const KernelSpec& kernel, const Sm90DecodeOrder& order) : spec(kernel), decode_order(order) {}

  KernelSpec spec;
  Sm90TileOrder sm90_order;               // of a kernel of family Sm90Forward
  Sm90DecodeOrder decode_order;           // of family Sm90Decode
  Sm90BackwardOrder sm90_backward_order;  // of family Sm90Backward
  /// What the last run of the plan launched, so that the next one on the same device need not ask the store,
  /// which keeps it for the life of the process. All copies of a plan share it.
  mutable std::atomic<const LoadedKernel*> loaded = nullptr;
};

}  // namespace onepass
