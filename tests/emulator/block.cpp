#include "tests/emulator/block.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <optional>
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

struct Thread {
  enum class State { Ready, Waiting, Done };

  ucontext_t context{};
  State state = State::Ready;
  std::string waits_for;  // when waiting
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> copy_groups;  // committed, oldest first
};

/// Lanes at an instruction that they execute together.
struct Meeting {
  const char* instruction = nullptr;
  int arrived = 0;
  LaneOperands operands{};
};

struct Barrier {
  int expected = 0;
  std::vector<int> arrived;  // threads
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
  Block(const std::function<void()>& kernel, std::int64_t index, int num_threads)
      : kernel_(kernel),
        index_(index),
        threads_(static_cast<std::size_t>(num_threads)),
        meetings_(threads_.size() / 32) {}

  void run();

  int num_threads() const { return static_cast<int>(threads_.size()); }
  std::int64_t index() const { return index_; }
  int current() const { return static_cast<int>(current_); }
  ThreadPlace place() const { return {current() / 32, current() % 32}; }
  Thread& thread() { return threads_[current_]; }

  [[noreturn]] void fail(const std::string& text) {
    fault_ = text;
    setcontext(&main_);
    std::abort();  // setcontext does not return
  }
  void sync_barrier(int id, int num_threads);
  void meet_warp(const char* instruction, void* operands, void (*compute)(const LaneOperands&));
  void run_thread();

 private:
  void wait(std::string what);
  void pass_on();
  void release(int thread) { threads_[static_cast<std::size_t>(thread)].state = Thread::State::Ready; }
  std::string describe_deadlock() const;

  const std::function<void()>& kernel_;
  std::int64_t index_;
  std::vector<Thread> threads_;
  std::vector<Meeting> meetings_;  // one per warp
  std::array<Barrier, kNumBarriers> barriers_;
  std::size_t current_ = 0;
  ucontext_t main_{};
  std::optional<std::string> fault_;
};

Block* running = nullptr;

void enter_thread() { running->run_thread(); }

void Block::run() {
  static const Stacks stacks;
  for (std::size_t t = 0; t < threads_.size(); ++t) {
    ucontext_t& context = threads_[t].context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks.of(t);
    context.uc_stack.ss_size = Stacks::kBytes;
    context.uc_link = nullptr;
    makecontext(&context, enter_thread, 0);
  }
  running = this;
  swapcontext(&main_, &threads_[0].context);  // back when nobody can go on
  running = nullptr;
  if (!fault_ && std::any_of(threads_.begin(), threads_.end(),
                             [](const Thread& t) { return t.state != Thread::State::Done; })) {
    fault_ = describe_deadlock();
  }
  if (fault_) throw Fault(fmt::format("block {}: {}", index_, *fault_));
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

void Block::sync_barrier(int id, int num_threads) {
  if (id < 0 || id >= kNumBarriers) fail(fmt::format("thread {}: there is no barrier {}", current(), id));
  Barrier& barrier = barriers_[static_cast<std::size_t>(id)];
  if (barrier.arrived.empty()) barrier.expected = num_threads;
  if (num_threads != barrier.expected || num_threads % 32 != 0) {
    fail(fmt::format("thread {} comes to {} with a count of {}, others with {}", current(), barrier_name(id),
                     num_threads, barrier.expected));
  }
  barrier.arrived.push_back(current());
  if (static_cast<int>(barrier.arrived.size()) < num_threads) return wait(barrier_name(id));

  std::vector<int> arrived;
  arrived.swap(barrier.arrived);
  std::sort(arrived.begin(), arrived.end());
  std::vector<int> warps;
  for (std::size_t i = 0; i < arrived.size(); i += 32) {
    if (arrived[i] % 32 != 0 || arrived[i + 31] != arrived[i] + 31) {
      fail(fmt::format("{} was met by parts of warps: threads {}", barrier_name(id), ranges(arrived)));
    }
    warps.push_back(arrived[i] / 32);
  }
  SharedMemory::instance().join(warps);
  for (const int thread : arrived) release(thread);
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

}  // namespace

void launch(const std::function<void()>& kernel, std::int64_t grid, int num_threads, int shared_bytes) {
  if (num_threads % 32 != 0 || num_threads < 32 || num_threads > kMaxThreads ||
      shared_bytes > SharedMemory::kCapacity) {
    throw Fault(fmt::format("a block of {} threads and {} bytes of shared memory; here up to {} and {}",
                            num_threads, shared_bytes, kMaxThreads, SharedMemory::kCapacity));
  }
  for (std::int64_t index = 0; index < grid; ++index) {
    SharedMemory::instance().begin_block(shared_bytes);
    Block(kernel, index, num_threads).run();
  }
}

std::uint32_t thread_index() { return static_cast<std::uint32_t>(running->current()); }
std::uint32_t block_index() { return static_cast<std::uint32_t>(running->index()); }
void fault(const std::string& text) { running->fail(text); }

void sync_barrier(int id, int num_threads) { running->sync_barrier(id, num_threads); }
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
  SharedMemory::instance().begin_copy(running->place(), shared_address, bytes);
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
      char* target = SharedMemory::instance().end_copy(running->place(), copy.shared_address, copy.bytes);
      std::memset(target, 0, static_cast<std::size_t>(copy.bytes));
      std::memcpy(target, copy.global, static_cast<std::size_t>(copy.valid));
    }
    groups.pop_front();
  }
}

}  // namespace onepass::emulator
