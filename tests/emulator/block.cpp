#include "tests/emulator/block.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/emulator/shared_memory.h"

namespace onepass::emulator {
namespace {

constexpr int kMaxThreads = 32 * SharedMemory::kMaxWarps;
constexpr int kNumBarriers = 16;

/// Stacks of the fibers, each above pages that must not be touched. AddressSanitizer makes frames large.
class Stacks {
 public:
  static constexpr std::size_t kBytes = 256 * 1024, kGuard = 64 * 1024;

  Stacks() {
    void* memory = mmap(nullptr, kMaxThreads * (kBytes + kGuard), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(memory);
    for (std::size_t t = 0; t < kMaxThreads; ++t) mprotect(base_ + t * (kBytes + kGuard), kGuard, PROT_NONE);
  }
  char* of(std::size_t thread) const { return base_ + thread * (kBytes + kGuard) + kGuard; }

 private:
  char* base_;
};

struct Copy {
  std::int64_t shared_address;
  const void* global;
  int bytes, valid;
};

void land(const Copy& copy, char* target) {
  std::memset(target, 0, static_cast<std::size_t>(copy.bytes));
  std::memcpy(target, copy.global, static_cast<std::size_t>(copy.valid));
}

/// A copy out of shared memory.
struct BulkStore {
  std::int64_t shared_address;
  int bytes;
  std::function<void(const char*)> take;
};

/// A copy that an mbarrier counts.
struct BulkCopy {
  ThreadPlace issuer;
  std::int64_t shared_address;
  int bytes;
  std::function<void(char*)> fill;
};

struct Mbarrier {
  int num_arrivals = 0;  // of a phase
  int missing = 0;       // arrivals in this phase
  int parity = 0;        // of this phase
  std::int64_t expected_bytes = 0, issued_bytes = 0;
  std::vector<BulkCopy> copies;
  SharedMemory::Knowledge gathered{}, finished{};  // by those that arrived in this phase and in the last one
  std::vector<int> waiting;                        // threads
};

struct Thread {
  enum class State { Ready, Waiting, Done };

  ucontext_t context{};
  State state = State::Ready;
  bool at_cluster_barrier = false;
  std::string waits_for;  // when waiting
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> copy_groups;  // committed, oldest first
  std::shared_ptr<void> storage;
  std::vector<BulkStore> open_stores, committed_stores;
};

/// Lanes at an instruction that they execute together.
struct Meeting {
  const char* instruction = nullptr;
  int arrived = 0;
  LaneOperands operands{};
};

struct Barrier {
  int expected = 0;
  std::vector<int> arrived;             // threads
  std::vector<int> passed;              // of those, the ones that did not wait
  SharedMemory::Knowledge published{};  // by them
};

std::string barrier_name(int id) {
  return id == 0 ? "barrier 0 (__syncthreads)" : fmt::format("named barrier {}", id);
}

/// "0-31, 64, 66-95"
std::string ranges(const std::vector<int>& sorted) {
  std::string text;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", sorted[i]);
    if (end > i + 1) text += fmt::format("-{}", sorted[end - 1]);
    i = end;
  }
  return text;
}

class Block {
 public:
  Block(const std::function<void()>& kernel, std::int64_t index, const Grid& grid)
      : kernel_(kernel),
        index_(index),
        grid_(grid),
        threads_(static_cast<std::size_t>(grid.num_threads)),
        meetings_(threads_.size() / 32) {}

  /// Runs threads until none can go on.
  void advance();
  /// Its threads have ended, or it is an error that they have not.
  void finish();
  bool ended() const {
    return std::all_of(threads_.begin(), threads_.end(),
                       [](const Thread& t) { return t.state == Thread::State::Done; });
  }
  /// Whether all threads that have not ended are at the cluster's barrier.
  bool at_cluster_barrier() const {
    return std::all_of(threads_.begin(), threads_.end(), [](const Thread& t) {
      return t.state == Thread::State::Done || t.at_cluster_barrier;
    });
  }
  void leave_cluster_barrier();
  void sync_cluster() {
    thread().at_cluster_barrier = true;
    wait("the cluster's barrier");
  }
  int rank() const { return static_cast<int>(index_ % grid_.cluster_blocks); }

  int num_threads() const { return static_cast<int>(threads_.size()); }
  std::int64_t index() const { return index_; }
  const Grid& grid() const { return grid_; }
  int current() const { return static_cast<int>(current_); }
  ThreadPlace place() const { return {current() / 32, current() % 32}; }
  Thread& thread() { return threads_[current_]; }

  [[noreturn]] void fail(const std::string& text) {
    fault_ = text;
    setcontext(&main_);
    std::abort();  // setcontext does not return
  }
  void sync_barrier(int id, int num_threads);
  void arrive_at_barrier(int id, int num_threads);
  void meet_warp(const char* instruction, void* operands, void (*compute)(const LaneOperands&));
  void run_thread();

  void init_mbarrier(std::int64_t address, int num_arrivals);
  void arrive_at_mbarrier(std::int64_t address, int expected_bytes);
  void arrive_after_copies(std::int64_t address);
  void wait_for_mbarrier(std::int64_t address, int parity);
  void issue_bulk_copy(std::int64_t mbarrier, BulkCopy copy);
  void wait_for_count(const int* address, int value);
  void wake_for_counts();

 private:
  Barrier& barrier_at(int id, int num_threads);
  void finish_barrier(int id);
  Mbarrier& mbarrier_at(std::int64_t address, const char* instruction);
  bool finish_phase(Mbarrier& barrier, bool deliver);
  void wake(Mbarrier& barrier);
  void wait(std::string what);
  void pass_on();
  void release(int thread) { threads_[static_cast<std::size_t>(thread)].state = Thread::State::Ready; }
  std::string describe_deadlock() const;

  const std::function<void()>& kernel_;
  std::int64_t index_;
  Grid grid_;
  bool started_ = false;
  std::vector<Thread> threads_;
  std::vector<Meeting> meetings_;  // one per warp
  std::array<Barrier, kNumBarriers> barriers_;
  std::map<std::int64_t, Mbarrier> mbarriers_;  // by address
  std::vector<int> waiting_for_counts_;         // threads
  std::size_t current_ = 0;
  ucontext_t main_{};
  std::optional<std::string> fault_;
};

Block* running = nullptr;

void enter_thread() { running->run_thread(); }

void Block::advance() {
  static std::array<std::unique_ptr<Stacks>, SharedMemory::kMostRanks> stacks;
  if (!started_) {
    started_ = true;
    std::unique_ptr<Stacks>& own = stacks.at(static_cast<std::size_t>(rank()));
    if (own == nullptr) own = std::make_unique<Stacks>();
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      ucontext_t& context = threads_[t].context;
      getcontext(&context);
      context.uc_stack.ss_sp = own->of(t);
      context.uc_stack.ss_size = Stacks::kBytes;
      context.uc_link = nullptr;
      makecontext(&context, enter_thread, 0);
    }
  }
  const auto ready = std::find_if(threads_.begin(), threads_.end(),
                                  [](const Thread& t) { return t.state == Thread::State::Ready; });
  if (ready == threads_.end()) return;
  current_ = static_cast<std::size_t>(ready - threads_.begin());
  running = this;
  swapcontext(&main_, &ready->context);  // back when nobody can go on
  running = nullptr;
  if (fault_) throw Fault(fmt::format("block {}: {}", index_, *fault_));
}

void Block::finish() {
  if (!ended()) throw Fault(fmt::format("block {}: {}", index_, describe_deadlock()));
  for (const auto& [address, barrier] : mbarriers_) {
    if (barrier.copies.empty()) continue;
    throw Fault(fmt::format(
        "block {}: nobody has waited at the mbarrier at byte {} for the copy to byte {} of shared memory",
        index_, address, barrier.copies.front().shared_address));
  }
}

void Block::leave_cluster_barrier() {
  std::vector<int> warps(threads_.size() / 32);
  std::iota(warps.begin(), warps.end(), 0);
  SharedMemory::instance().join(warps);
  for (Thread& thread : threads_) {
    if (!thread.at_cluster_barrier) continue;
    thread.at_cluster_barrier = false;
    thread.state = Thread::State::Ready;
  }
}

void Block::run_thread() {
  kernel_();
  Thread& self = thread();
  commit_copies();
  for (const std::vector<Copy>& group : self.copy_groups) {
    if (group.empty()) continue;
    fail(fmt::format("thread {} ends without having waited for its cp.async to byte {} of shared memory",
                     current(), group.front().shared_address));
  }
  if (!self.open_stores.empty() || !self.committed_stores.empty())
    fail(fmt::format("thread {} ends without having waited for its copies from shared memory", current()));
  self.state = Thread::State::Done;
  pass_on();
}

/// To the next thread that can go on; to run() when there is none.
void Block::pass_on() {
  ucontext_t& here = thread().context;
  for (std::size_t step = 1; step <= threads_.size(); ++step) {
    const std::size_t next = (current_ + step) % threads_.size();
    if (threads_[next].state != Thread::State::Ready) continue;
    current_ = next;
    swapcontext(&here, &threads_[next].context);
    return;
  }
  swapcontext(&here, &main_);
}

void Block::wait(std::string what) {
  thread().waits_for = std::move(what);
  thread().state = Thread::State::Waiting;
  pass_on();
}

std::string Block::describe_deadlock() const {
  std::map<std::string, std::vector<int>> waiting;
  for (int t = 0; t < num_threads(); ++t) {
    const Thread& thread = threads_[static_cast<std::size_t>(t)];
    waiting[thread.state == Thread::State::Done ? "nothing, having ended" : thread.waits_for].push_back(t);
  }
  std::string text = "deadlock";
  for (const auto& [what, threads] : waiting) {
    text += fmt::format("{} threads {} wait for {}", text == "deadlock" ? ":" : ";", ranges(threads), what);
  }
  return text;
}

Barrier& Block::barrier_at(int id, int num_threads) {
  if (id < 0 || id >= kNumBarriers) fail(fmt::format("thread {}: there is no barrier {}", current(), id));
  Barrier& barrier = barriers_[static_cast<std::size_t>(id)];
  if (barrier.arrived.empty()) barrier.expected = num_threads;
  if (num_threads != barrier.expected || num_threads % 32 != 0) {
    fail(fmt::format("thread {} comes to {} with a count of {}, others with {}", current(), barrier_name(id),
                     num_threads, barrier.expected));
  }
  return barrier;
}

void Block::sync_barrier(int id, int num_threads) {
  Barrier& barrier = barrier_at(id, num_threads);
  barrier.arrived.push_back(current());
  if (static_cast<int>(barrier.arrived.size()) < num_threads) return wait(barrier_name(id));
  finish_barrier(id);
}

/// For all lanes of the current warp.
void Block::arrive_at_barrier(int id, int num_threads) {
  Barrier& barrier = barrier_at(id, num_threads);
  const int warp = place().warp;
  if (std::find(barrier.passed.begin(), barrier.passed.end(), 32 * warp) != barrier.passed.end()) {
    fail(fmt::format("warp {} comes to {} for the second time, and others have not come yet", warp,
                     barrier_name(id)));
  }
  SharedMemory::instance().join({&warp, 1});
  const SharedMemory::Knowledge published = SharedMemory::instance().publish(place());
  for (std::size_t w = 0; w < published.size(); ++w)
    barrier.published[w] = std::max(barrier.published[w], published[w]);
  for (int thread = 32 * warp; thread < 32 * warp + 32; ++thread) {
    barrier.arrived.push_back(thread);
    barrier.passed.push_back(thread);
  }
  if (static_cast<int>(barrier.arrived.size()) >= num_threads) finish_barrier(id);
}

void Block::finish_barrier(int id) {
  const Barrier finished = std::exchange(barriers_[static_cast<std::size_t>(id)], {});
  std::vector<int> arrived = finished.arrived;
  std::sort(arrived.begin(), arrived.end());
  std::vector<int> warps;  // that waited
  for (std::size_t i = 0; i < arrived.size(); i += 32) {
    if (arrived[i] % 32 != 0 || arrived[i + 31] != arrived[i] + 31) {
      fail(fmt::format("{} was met by parts of warps: threads {}", barrier_name(id), ranges(arrived)));
    }
    if (std::find(finished.passed.begin(), finished.passed.end(), arrived[i]) == finished.passed.end())
      warps.push_back(arrived[i] / 32);
  }
  SharedMemory::instance().join(warps);
  for (const int warp : warps) {
    SharedMemory::instance().learn({warp, 0}, finished.published);
    for (int thread = 32 * warp; thread < 32 * warp + 32; ++thread) release(thread);
  }
}

void Block::meet_warp(const char* instruction, void* operands, void (*compute)(const LaneOperands&)) {
  const auto [warp, lane] = place();
  Meeting& meeting = meetings_[static_cast<std::size_t>(warp)];
  if (meeting.arrived == 0) meeting.instruction = instruction;
  if (std::strcmp(meeting.instruction, instruction) != 0) {
    fail(fmt::format("warp {} comes apart: thread {} is at {}, others at {}", warp, current(), instruction,
                     meeting.instruction));
  }
  meeting.operands[static_cast<std::size_t>(lane)] = operands;
  if (++meeting.arrived < 32) return wait(instruction);
  meeting.arrived = 0;
  compute(meeting.operands);
  for (int other = 32 * warp; other < 32 * warp + 32; ++other) release(other);
}

void Block::init_mbarrier(std::int64_t address, int num_arrivals) {
  write_shared(address, 8, 8, "mbarrier.init");
  Mbarrier& barrier = mbarriers_[address];
  barrier = {};
  barrier.num_arrivals = barrier.missing = num_arrivals;
}

Mbarrier& Block::mbarrier_at(std::int64_t address, const char* instruction) {
  read_shared(address, 8, 8, instruction);  // after its init
  const auto found = mbarriers_.find(address);
  if (found == mbarriers_.end())
    fail(fmt::format("thread {}: {} at byte {}, where no mbarrier is", current(), instruction, address));
  return found->second;
}

void Block::wake(Mbarrier& barrier) {
  for (const int thread : barrier.waiting) release(thread);
  barrier.waiting.clear();
}

/// Whether everything that the phase waits for is there; copies only if they are to be delivered now.
bool Block::finish_phase(Mbarrier& barrier, bool deliver) {
  if (barrier.missing > 0 || barrier.expected_bytes != barrier.issued_bytes) return false;
  if (!barrier.copies.empty() && !deliver) return false;
  for (const BulkCopy& copy : barrier.copies) {
    copy.fill(SharedMemory::instance().end_bulk_copy(copy.issuer, copy.shared_address, copy.bytes));
  }
  barrier.copies.clear();
  barrier.finished = barrier.gathered;
  barrier.gathered = {};
  barrier.missing = barrier.num_arrivals;
  barrier.expected_bytes = barrier.issued_bytes = 0;
  barrier.parity ^= 1;
  wake(barrier);
  return true;
}

void Block::arrive_at_mbarrier(std::int64_t address, int expected_bytes) {
  Mbarrier& barrier = mbarrier_at(address, "mbarrier.arrive");
  if (barrier.missing == 0) {
    fail(fmt::format("thread {} arrives at the mbarrier at byte {}, whose phase has all its {} arrivals",
                     current(), address, barrier.num_arrivals));
  }
  --barrier.missing;
  barrier.expected_bytes += expected_bytes;
  const SharedMemory::Knowledge published = SharedMemory::instance().publish(place());
  for (std::size_t w = 0; w < published.size(); ++w)
    barrier.gathered[w] = std::max(barrier.gathered[w], published[w]);
  if (!finish_phase(barrier, false)) wake(barrier);
}

void Block::arrive_after_copies(std::int64_t address) {
  Mbarrier& barrier = mbarrier_at(address, "cp.async.mbarrier.arrive");
  Thread& self = thread();
  self.copy_groups.push_back(std::move(self.open_copies));
  for (const std::vector<Copy>& group : self.copy_groups) {
    for (const Copy& copy : group) {
      barrier.copies.push_back(
          {place(), copy.shared_address, copy.bytes, [copy](char* target) { land(copy, target); }});
    }
  }
  self.copy_groups.clear();
  self.open_copies.clear();
  arrive_at_mbarrier(address, 0);
}

void Block::wait_for_mbarrier(std::int64_t address, int parity) {
  Mbarrier& barrier = mbarrier_at(address, "mbarrier.try_wait");
  while (barrier.parity == parity && !finish_phase(barrier, true)) {
    barrier.waiting.push_back(current());
    wait(fmt::format("{} arrivals and {} bytes at the mbarrier at byte {}", barrier.missing,
                     barrier.expected_bytes - barrier.issued_bytes, address));
  }
  SharedMemory::instance().learn(place(), barrier.finished);
}

void Block::wait_for_count(const int* address, int value) {
  while (*address < value) {
    waiting_for_counts_.push_back(current());
    wait(fmt::format("{} in global memory where {} is", value, *address));
  }
}

void Block::wake_for_counts() {
  for (const int thread : waiting_for_counts_) release(thread);
  waiting_for_counts_.clear();
}

void Block::issue_bulk_copy(std::int64_t mbarrier, BulkCopy copy) {
  Mbarrier& barrier = mbarrier_at(mbarrier, "cp.async.bulk");
  SharedMemory& memory = SharedMemory::instance();
  memory.begin_copy(copy.issuer, copy.shared_address, copy.bytes, 16, "cp.async.bulk");
  const SharedMemory::Knowledge published = memory.publish(copy.issuer);
  for (std::size_t w = 0; w < published.size(); ++w)
    barrier.gathered[w] = std::max(barrier.gathered[w], published[w]);
  barrier.issued_bytes += copy.bytes;
  barrier.copies.push_back(std::move(copy));
  wake(barrier);
}

}  // namespace

namespace {

std::vector<std::unique_ptr<Block>> cluster;

/// Runs the blocks of a cluster by turns, from one barrier of the cluster to the next.
void run_cluster() {
  const auto all = [](auto holds) { return std::all_of(cluster.begin(), cluster.end(), holds); };
  for (;;) {
    for (const auto& block : cluster) {
      SharedMemory::select(block->rank());
      block->advance();
    }
    if (all([](const auto& block) { return block->ended(); })) break;
    if (!all([](const auto& block) { return block->at_cluster_barrier(); })) break;  // a deadlock
    for (const auto& block : cluster) {
      SharedMemory::select(block->rank());
      block->leave_cluster_barrier();
    }
  }
  for (const auto& block : cluster) block->finish();
}

}  // namespace

void launch(const std::function<void()>& kernel, const Grid& grid) {
  if (grid.num_threads % 32 != 0 || grid.num_threads < 32 || grid.num_threads > kMaxThreads ||
      grid.shared_bytes > SharedMemory::kCapacity) {
    throw Fault(fmt::format("a block of {} threads and {} bytes of shared memory; here up to {} and {}",
                            grid.num_threads, grid.shared_bytes, kMaxThreads, SharedMemory::kCapacity));
  }
  if (grid.cluster_blocks < 1 || grid.cluster_blocks > SharedMemory::kMostRanks ||
      grid.blocks % grid.cluster_blocks != 0) {
    throw Fault(fmt::format("{} blocks in clusters of {}", grid.blocks, grid.cluster_blocks));
  }
  const std::int64_t clusters = grid.blocks / grid.cluster_blocks;
  for (std::int64_t i = 0; i < clusters; ++i) {
    const std::int64_t index = grid.order == BlockOrder::Ascending ? i : clusters - 1 - i;
    cluster.clear();
    for (int rank = 0; rank < grid.cluster_blocks; ++rank) {
      cluster.push_back(std::make_unique<Block>(kernel, index * grid.cluster_blocks + rank, grid));
      SharedMemory::select(rank);
      SharedMemory::instance().begin_block(grid.shared_bytes);
    }
    run_cluster();
  }
}

void sync_cluster() { running->sync_cluster(); }
const char* read_cluster(int rank, std::int64_t address, int bytes) {
  if (rank < 0 || rank >= static_cast<int>(cluster.size()) ||
      cluster[static_cast<std::size_t>(rank)]->ended())
    fault(fmt::format("ld.shared::cluster from block {} of the cluster, which is not there", rank));
  return SharedMemory::of_rank(rank).read_from_outside(address, bytes);
}

std::uint32_t thread_index() { return static_cast<std::uint32_t>(running->current()); }
std::uint32_t block_index() { return static_cast<std::uint32_t>(running->index()); }
std::uint32_t grid_size() { return static_cast<std::uint32_t>(running->grid().blocks); }
std::shared_ptr<void>& thread_storage() { return running->thread().storage; }
void fault(const std::string& text) { running->fail(text); }

void sync_barrier(int id, int num_threads) { running->sync_barrier(id, num_threads); }
void arrive_at_barrier(int id, int num_threads) {
  struct Arrival {
    int id, num_threads;
  } arrival{id, num_threads};
  meet_warp("bar.arrive", &arrival, [](const LaneOperands& lanes) {
    const auto& first = *static_cast<const Arrival*>(lanes[0]);
    running->arrive_at_barrier(first.id, first.num_threads);
  });
}
void sync_block() { running->sync_barrier(0, running->num_threads()); }
void sync_warp() {
  meet_warp("__syncwarp", nullptr, [](const LaneOperands&) {
    const int warp = running->place().warp;
    SharedMemory::instance().join({&warp, 1});
  });
}
void meet_warp(const char* instruction, void* operands, void (*compute)(const LaneOperands&)) {
  running->meet_warp(instruction, operands, compute);
}

const char* read_shared(std::int64_t address, int bytes, int alignment, const char* how) {
  return SharedMemory::instance().read(running->place(), address, bytes, alignment, how);
}
char* write_shared(std::int64_t address, int bytes, int alignment, const char* how) {
  return SharedMemory::instance().write(running->place(), address, bytes, alignment, how);
}

void issue_copy(std::int64_t shared_address, const void* global, int bytes, int valid) {
  if (valid < 0 || valid > bytes ||
      reinterpret_cast<std::uintptr_t>(global) % static_cast<unsigned>(bytes) != 0) {
    fault(fmt::format("thread {}: cp.async of {} bytes, {} of them valid, from address {}",
                      running->current(), bytes, valid, global));
  }
  SharedMemory::instance().begin_copy(running->place(), shared_address, bytes, bytes, "cp.async");
  running->thread().open_copies.push_back({shared_address, global, bytes, valid});
}

void commit_copies() {
  Thread& thread = running->thread();
  thread.copy_groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void wait_copies(int most_pending) {
  auto& groups = running->thread().copy_groups;
  while (groups.size() > static_cast<std::size_t>(most_pending)) {
    for (const Copy& copy : groups.front()) {
      land(copy, SharedMemory::instance().end_copy(running->place(), copy.shared_address, copy.bytes));
    }
    groups.pop_front();
  }
}

void issue_bulk_store(std::int64_t shared_address, int bytes, std::function<void(const char*)> take) {
  running->thread().open_stores.push_back({shared_address, bytes, std::move(take)});
}
void commit_bulk_stores() {
  Thread& thread = running->thread();
  std::move(thread.open_stores.begin(), thread.open_stores.end(),
            std::back_inserter(thread.committed_stores));
  thread.open_stores.clear();
}
void wait_bulk_stores() {
  for (const BulkStore& store : running->thread().committed_stores)
    store.take(read_shared(store.shared_address, store.bytes, 16, "cp.async.bulk"));
  running->thread().committed_stores.clear();
}
void wait_for_count(const int* address, int value) { running->wait_for_count(address, value); }
void wake_for_counts() { running->wake_for_counts(); }

void init_mbarrier(std::int64_t address, int num_arrivals) { running->init_mbarrier(address, num_arrivals); }
void arrive_at_mbarrier(std::int64_t address, int expected_bytes) {
  running->arrive_at_mbarrier(address, expected_bytes);
}
void arrive_after_copies(std::int64_t address) { running->arrive_after_copies(address); }
void wait_for_mbarrier(std::int64_t address, int parity) { running->wait_for_mbarrier(address, parity); }
void issue_bulk_copy(std::int64_t mbarrier, std::int64_t shared_address, int bytes,
                     std::function<void(char* target)> fill) {
  running->issue_bulk_copy(mbarrier, {running->place(), shared_address, bytes, std::move(fill)});
}

}  // namespace onepass::emulator
