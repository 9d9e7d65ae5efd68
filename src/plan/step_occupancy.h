// What the attention kernel of a step takes of a multiprocessor, and how its thread blocks fill the GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "dispatch/occupancy.h"
#include "onepass/plan.h"
#include "store/bundle.h"

namespace onepass {

enum class RegistersFrom : std::uint8_t {
  Loaded,       // the driver, which has the machine code
  Bundle,       // the compiler's report, kept with the machine code
  LaunchBound,  // the most that the kernel's name allows: its machine code is not at hand
};

struct StepOccupancy {
  int query_buffers = 1;                                          // of a tile of Q in shared memory
  int key_value_stages = 1;                                       // likewise of K and of V
  bool key_value_share = false;                                   // K and V take the same stages in turn
  std::int64_t shared_bytes = 0, shared_bytes_per_processor = 0;  // of a block; of all blocks together
  int registers = 0;                                              // of a thread, at launch
  RegistersFrom registers_from = RegistersFrom::LaunchBound;
  Occupancy limits;           // of a multiprocessor
  bool exact_blocks = false;  // false: with fewer registers than the bound there may be more blocks
  std::int64_t blocks_at_once = 0;
  /// Of blocks that stay and take tile after tile: all tiles. Otherwise nothing: a tile is a block.
  std::optional<std::int64_t> num_tiles;
  /// Waves of blocks, or tiles of a block that stays; nothing when no block fits.
  std::optional<double> rounds;
  bool exact_rounds = false;  // false: at most; blocks are more, or tiles fewer
  /// Share of the blocks that the GPU holds at once which the last round has; nothing when it is not known.
  std::optional<double> last_round;
};

/// Nothing for steps that run no attention kernel on a GPU. `bundle` is asked for registers only.
std::optional<StepOccupancy> step_occupancy(const Plan& plan, const PlanStep& step, const Bundle& bundle);

}  // namespace onepass
