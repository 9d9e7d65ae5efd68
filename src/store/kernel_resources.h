// What a kernel takes of a multiprocessor, as the compiler reports it, against what its spec allows.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "store/kernel_spec.h"

namespace onepass {

struct KernelResources {
  int registers = 0;    // of a thread
  int local_bytes = 0;  // stack of a thread: arrays and spilled registers, slow memory that no kernel may use
  int spilled_bytes = 0;  // stored and loaded again
  // wgmma products wait for each other, because the compiler could not tell their registers apart
  bool serialized = false;
  bool registers_stay = false;  // the compiler left setmaxnreg out

  bool operator==(const KernelResources&) const = default;
};

/// From the log of --ptxas-options=-v: the most of any function in it. All -1 when the log says nothing.
KernelResources read_resources(std::string_view log);

inline constexpr int kRegistersOfSm = 65536;  // of every GPU since compute capability 8.0

/// Registers that a thread may have so that min_blocks blocks fit on an SM, which divides them among four
/// partitions of its warps and gives them out in eights; 255 at most.
int register_budget(const KernelSpec& spec);

/// Which budget a kernel breaks, with its numbers; nothing when it keeps to all.
std::optional<std::string> over_budget(const KernelSpec& spec, const KernelResources& resources);

}  // namespace onepass
