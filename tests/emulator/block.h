// One thread block at a time on the CPU: every thread of it is a fiber that runs until it has to wait for
// others.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace onepass::emulator {

/// What a kernel did wrong: a race, a deadlock, an access outside shared memory, ...
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs the blocks of a grid one after another: kernel() is called by each thread of each block.
/// @throws Fault, the first one; the other threads of that block then stay where they are for ever.
void launch(const std::function<void()>& kernel, std::int64_t grid, int num_threads, int shared_bytes);

// For the running thread.

std::uint32_t thread_index();
std::uint32_t block_index();

/// Ends the launch.
[[noreturn]] void fault(const std::string& text);

/// Waits until num_threads threads, in whole warps, have come to barrier `id`; 0 is the one of __syncthreads.
void sync_barrier(int id, int num_threads);
void sync_block();
void sync_warp();

/// What the lanes of a warp bring to an instruction that they execute together, lane by lane.
using LaneOperands = std::array<void*, 32>;

/// Waits for all 32 lanes; the last one to come computes the results of all. Lanes at different instructions
/// are a fault. Orders no accesses to memory.
void meet_warp(const char* instruction, void* operands, void (*compute)(const LaneOperands&));

/// Shared memory, by address (shared_memory.h).
const char* read_shared(std::int64_t address, int bytes, int alignment, const char* how);
char* write_shared(std::int64_t address, int bytes, int alignment, const char* how);

/// cp.async: the bytes arrive when their group is waited for, and are poison until then. A copy that nobody
/// waits for is a fault when its thread ends.
void issue_copy(std::int64_t shared_address, const void* global, int bytes, int valid);
void commit_copies();
void wait_copies(int most_pending);

}  // namespace onepass::emulator
