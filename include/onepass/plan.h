// onepass/plan.h - what a call would do and why: device values, plans, accounting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/version.h"

namespace onepass {

struct AttentionProblem;  // internal: the checked, plain-value form of a call
struct PlannedKernel;     // internal: a GPU kernel as a value, and where it is loaded
struct ForwardArguments;  // attention.h

/// A processor as a value, so that plans can be made for hardware that is not here.
/// Throughputs are published (GPU table) or estimated (this CPU) peaks, dense, without sparsity.
struct DeviceInfo {
  enum class Kind : std::uint8_t { Cpu, Cuda };

  std::string name;  ///< "h200", ..., or the model name of a CPU
  Kind kind = Kind::Cpu;
  int compute_capability = 0;  ///< 80, 86, 89, 90, 100; 0 for a CPU
  int num_processors = 1;      ///< streaming multiprocessors, or CPU cores usable by this process
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;                ///< GPU L2; a CPU's last-level cache
  std::int64_t l1_bytes_per_processor = 0;  ///< CPU: first-level data cache of a core
  std::int64_t shared_bytes_per_block = 0;  ///< GPU: largest dynamic shared memory of a thread block
  double memory_bytes_per_second = 0;
  double f32_flops_per_second = 0;  ///< vector units
  double f16_flops_per_second = 0;  ///< f16/bf16 with f32 accumulation: tensor cores, or the CPU's best path
  double f8_flops_per_second = 0;   ///< 0: none
  std::string instruction_set;      ///< CPU: name of the widest SIMD target in use

  bool operator==(const DeviceInfo&) const = default;
};

/// The machine that this process runs on.
ONEPASS_API DeviceInfo this_cpu();
/// A known GPU by name: "a100", "h100", "h200", "l40s", "rtx4090", "b200". Empty when unknown.
ONEPASS_API std::optional<DeviceInfo> find_device(std::string_view name);
/// The names that find_device knows.
ONEPASS_API std::vector<std::string> known_devices();

/// An implementation that was asked and said no.
struct Decline {
  std::string implementation;
  std::string reason;
};

/// One thing to run: a kernel, or a parallel loop on a CPU.
struct PlanStep {
  std::string kernel;           ///< as it shows in logs and profilers
  std::int64_t num_work_items;  ///< thread blocks, or units of work handed to CPU threads
  int num_threads;              ///< threads per block, or CPU threads
  std::shared_ptr<const PlannedKernel> gpu_kernel = nullptr;  ///< null on a CPU
};

/// A named part of the workspace.
struct WorkspacePiece {
  std::string name;
  std::size_t offset_bytes;
  std::size_t bytes;
};

/// Bytes and floating-point operations of the whole call (spec section 7).
struct Accounting {
  double flops = 0;                   ///< unmasked pairs only
  double bytes_materialised = 0;      ///< Q, K, V, O once, S and P written and read
  double bytes_one_pass = 0;          ///< Q, O once, K and V once per query tile
  double bytes_lower_bound = 0;       ///< each tensor once
  double intensity_materialised = 0;  ///< FLOP per byte
  double intensity_one_pass = 0;
  double ridge = 0;                ///< the device's FLOP per byte
  double seconds_lower_bound = 0;  ///< max of the two below
  double seconds_compute = 0;
  double seconds_memory = 0;  ///< bytes_lower_bound over bandwidth
};

/// The outcome of planning; a value that can be copied, kept and run any number of times.
struct ONEPASS_API Plan {
  std::string implementation;     ///< name of the one that accepted
  std::vector<Decline> declines;  ///< those asked before it
  std::vector<PlanStep> steps;
  /// After `steps`, one after another in the same workspace. Of a packed batch with sequences of many query
  /// rows and of few: a launch for each kind. Of a backward call for whose sums of dQ that is too little:
  /// ranges of heads, from the first on.
  std::vector<Plan> parts;
  std::int64_t tile_m = 0;      ///< query rows of one tile
  std::int64_t tile_n = 0;      ///< key rows of one tile
  std::int64_t tile_heads = 1;  ///< query heads of one key head whose rows fill a tile together
  std::int64_t item_heads = 1;  ///< key heads whose tiles one work item serves (decode on the CPU)
  int num_splits = 1;           ///< parts the keys are split into
  int num_threads = 1;
  std::vector<WorkspacePiece> workspace;
  Accounting accounting;
  DeviceInfo device;
  std::shared_ptr<const AttentionProblem> problem;
  /// Of a plan that plan() made for a forward call: its tensors, whose data is not looked at. A run with
  /// others like them need not describe its problem again.
  std::shared_ptr<const ForwardArguments> made_for;

  /// Bytes that run() needs; a pure function of the problem, the options and the device.
  std::size_t workspace_bytes() const;
  /// The plan as text for people: problem, declines, steps, workspace, accounting.
  std::string explain() const;
};

}  // namespace onepass
