// One thread block at a time on the CPU, or the blocks of one cluster by turns: every thread is a fiber that
// runs until it has to wait for others.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace onepass::emulator {

/// What a kernel did wrong: a race, a deadlock, an access outside shared memory, ...
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class BlockOrder { Ascending, Descending };

/// Of a launch, beside its kernel.
struct Grid {
  std::int64_t blocks;
  int num_threads, shared_bytes;  // of a block
  BlockOrder order = BlockOrder::Ascending;
  int cluster_blocks = 1;
};

/// Runs the blocks of a grid one after another: kernel() is called by each thread of each block.
/// @throws Fault, the first one; the other threads of that block then stay where they are for ever.
void launch(const std::function<void()>& kernel, const Grid& grid);
inline void launch(const std::function<void()>& kernel, std::int64_t blocks, int num_threads,
                   int shared_bytes) {
  launch(kernel, {blocks, num_threads, shared_bytes});
}

// For the running thread.

std::uint32_t thread_index();
std::uint32_t block_index();
std::uint32_t grid_size();

/// For what other files keep of the running thread; null when it begins.
std::shared_ptr<void>& thread_storage();

/// Ends the launch.
[[noreturn]] void fault(const std::string& text);

/// Waits until num_threads threads, in whole warps, have come to barrier `id`; 0 is the one of __syncthreads.
void sync_barrier(int id, int num_threads);
/// The same without waiting, for all lanes of a warp: those that wait learn what the warp did before.
void arrive_at_barrier(int id, int num_threads);
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

/// mbarrier, by the address of its eight bytes. What threads did before they arrived, those that wait for the
/// phase may rely on: SharedMemory::publish says how far.
void init_mbarrier(std::int64_t address, int num_arrivals);
/// expected_bytes: that copies bring before the phase ends, beside those that were expected already.
void arrive_at_mbarrier(std::int64_t address, int expected_bytes);
/// cp.async.mbarrier.arrive.noinc: what the thread's cp.async copy, unless it has waited for it, is the
/// mbarrier's from here on, and arrives when the phase is waited for.
void arrive_after_copies(std::int64_t address);
/// Until the phase of that parity is over. A fresh mbarrier counts as having finished parity 1.
void wait_for_mbarrier(std::int64_t address, int parity);

/// Waits until all threads of the cluster that have not ended have come here.
void sync_cluster();
/// Shared memory of block `rank` of the cluster, whose writes must have come before its last sync_cluster. A
/// block that has ended has none.
const char* read_cluster(int rank, std::int64_t address, int bytes);

/// cp.async.bulk: fill() writes the bytes as late as can be, when the phase is waited for.
void issue_bulk_copy(std::int64_t mbarrier, std::int64_t shared_address, int bytes,
                     std::function<void(char* target)> fill);

/// cp.async.bulk from shared memory: take() has the bytes as late as can be, when the thread waits. One that
/// nobody waits for is a fault when its thread ends.
void issue_bulk_store(std::int64_t shared_address, int bytes, std::function<void(const char* source)> take);
void commit_bulk_stores();
void wait_bulk_stores();

/// Until an int of global memory has this value or more; a block that is to run later would be waited for in
/// vain.
void wait_for_count(const int* address, int value);
/// Some int of global memory is larger now.
void wake_for_counts();

}  // namespace onepass::emulator
