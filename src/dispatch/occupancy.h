// How many thread blocks of a kernel a multiprocessor holds, by the arithmetic of its resources.
#pragma once

#include <cstdint>

#include "onepass/plan.h"
#include "store/kernel_spec.h"

namespace onepass {

/// Blocks at once, by each thing that they share.
struct Occupancy {
  int by_shared_memory = 0, by_threads = 0, by_registers = 0;

  int blocks() const;

  bool operator==(const Occupancy&) const = default;
};

/// `registers`: of a thread, one at least.
Occupancy occupancy(const KernelSpec& spec, const DeviceInfo& device, int registers);

/// Shared memory of a multiprocessor: a block can have all of it but what the system keeps for each.
std::int64_t shared_bytes_per_processor(const DeviceInfo& device);

}  // namespace onepass
