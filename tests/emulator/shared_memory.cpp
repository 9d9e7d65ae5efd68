#include "tests/emulator/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "tests/emulator/block.h"

// What `extern __shared__ char shared[]` of a kernel is.
alignas(1024) char shared[onepass::emulator::SharedMemory::kCapacity];

namespace onepass::emulator {
namespace {

std::string thread_name(int warp, std::uint32_t lane) {
  return lane < 32 ? fmt::format("thread {}", 32 * warp + static_cast<int>(lane))
                   : fmt::format("threads of warp {}", warp);
}

}  // namespace

SharedMemory& SharedMemory::of_rank(int rank) {
  static std::array<std::unique_ptr<SharedMemory>, kMostRanks> memories;
  std::unique_ptr<SharedMemory>& memory = memories.at(static_cast<std::size_t>(rank));
  if (memory == nullptr) memory.reset(new SharedMemory);
  return *memory;
}

namespace {
SharedMemory* selected = nullptr;
}

SharedMemory& SharedMemory::instance() {
  if (selected == nullptr) selected = &of_rank(0);
  return *selected;
}

void SharedMemory::select(int rank) {
  SharedMemory& now = instance();
  SharedMemory& next = of_rank(rank);
  if (&now == &next) return;
  now.kept_.assign(shared, shared + now.bytes_);
  std::copy(next.kept_.begin(), next.kept_.end(), shared);
  selected = &next;
}

const char* SharedMemory::read_from_outside(std::int64_t address, int bytes) {
  for (const Cell& cell : cells({0, 0}, address, bytes, 4, "ld.shared::cluster")) {
    const auto writer = static_cast<std::size_t>(cell.writer_warp);
    const std::uint32_t clock = cell.written >> 6;
    // Where plain stores are AddressSanitizer's, nothing is known of them.
    const bool known = ONEPASS_EMULATOR_HOOKS != 0;
    if (known && (clock <= start_ || cell.in_flight || clock > known_[0][writer]))
      fault(fmt::format(
          "ld.shared::cluster at byte {}, which the block has not written before the cluster's barrier",
          address));
  }
  return (this == &instance() ? shared : kept_.data()) + address;
}

SharedMemory::SharedMemory() : cells_(kCapacity / 2) {}

bool SharedMemory::contains(const void* pointer) {
  const std::int64_t address = address_of(pointer);
  return address >= 0 && address < kCapacity;
}

std::int64_t SharedMemory::address_of(const void* pointer) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer) -
                                   reinterpret_cast<std::uintptr_t>(shared));
}

void SharedMemory::begin_block(int bytes) {
  bytes_ = bytes;
  start_ = *std::max_element(clock_.begin(), clock_.end());
  clock_.fill(start_ + 1);
  for (auto& row : known_) row.fill(start_);
  accessing_.fill(0);
  std::memset(shared, kPoison, kCapacity);
}

std::span<SharedMemory::Cell> SharedMemory::cells(ThreadPlace thread, std::int64_t address, int bytes,
                                                  int alignment, const char* how) {
  if (address < 0 || address + bytes > bytes_) {
    fault(fmt::format("{}: {} at bytes {} to {} of shared memory, and the block has {}",
                      thread_name(thread.warp, static_cast<std::uint32_t>(thread.lane)), how, address,
                      address + bytes - 1, bytes_));
  }
  if (address % alignment != 0) {
    fault(fmt::format("{}: {} at byte {} of shared memory, which is no multiple of {}",
                      thread_name(thread.warp, static_cast<std::uint32_t>(thread.lane)), how, address,
                      alignment));
  }
  const std::int64_t first = address / 2, last = (address + bytes - 1) / 2;
  return std::span(cells_).subspan(static_cast<std::size_t>(first),
                                   static_cast<std::size_t>(last - first + 1));
}

SharedMemory::Stamp SharedMemory::stamp(ThreadPlace thread) const {
  return clock_[static_cast<std::size_t>(thread.warp)] << 6 | static_cast<std::uint32_t>(thread.lane);
}

bool SharedMemory::ordered(ThreadPlace thread, int other_warp, Stamp other) const {
  const std::uint32_t clock = other >> 6, lane = other & 63;
  if (clock <= start_) return true;  // of an earlier block
  const auto warp = static_cast<std::size_t>(thread.warp);
  if (other_warp != thread.warp) return clock <= known_[warp][static_cast<std::size_t>(other_warp)];
  return clock < clock_[warp] || lane == static_cast<std::uint32_t>(thread.lane);
}

void SharedMemory::conflict(ThreadPlace thread, std::int64_t address, const char* how, int other_warp,
                            Stamp other, const char* other_did) const {
  fault(fmt::format("race at byte {} of shared memory: {} by thread {}, which {} {}", address, how,
                    32 * thread.warp + thread.lane, thread_name(other_warp, other & 63), other_did));
}

const char* SharedMemory::read(ThreadPlace thread, std::int64_t address, int bytes, int alignment,
                               const char* how) {
  accessing_[static_cast<std::size_t>(thread.warp)] |= 1u << thread.lane;
  std::int64_t at = address;
  for (Cell& cell : cells(thread, address, bytes, alignment, how)) {
    if (cell.written >> 6 <= start_) {
      fault(fmt::format("thread {}: {} at byte {} of shared memory, which nobody has written",
                        32 * thread.warp + thread.lane, how, at));
    }
    if (cell.in_flight)
      conflict(thread, at, how, cell.writer_warp, cell.written, "copies without having waited");
    if (!ordered(thread, cell.writer_warp, cell.written)) {
      conflict(thread, at, how, cell.writer_warp, cell.written, "wrote with no barrier between");
    }
    Stamp& seen = cell.read[static_cast<std::size_t>(thread.warp)];
    const Stamp now = stamp(thread);
    seen = seen >> 6 == now >> 6 && seen != now ? now | kManyLanes : now;
    at += 2;
  }
  return shared + address;
}

void SharedMemory::check_write(ThreadPlace thread, std::int64_t address, const Cell& cell,
                               const char* how) const {
  if (cell.in_flight && cell.written >> 6 > start_) {
    conflict(thread, address, how, cell.writer_warp, cell.written, "copies without having waited");
  }
  if (!ordered(thread, cell.writer_warp, cell.written)) {
    conflict(thread, address, how, cell.writer_warp, cell.written, "wrote with no barrier between");
  }
  for (int warp = 0; warp < kMaxWarps; ++warp) {
    const Stamp read = cell.read[static_cast<std::size_t>(warp)];
    if (!ordered(thread, warp, read))
      conflict(thread, address, how, warp, read, "read with no barrier between");
  }
}

char* SharedMemory::write(ThreadPlace thread, std::int64_t address, int bytes, int alignment,
                          const char* how) {
  accessing_[static_cast<std::size_t>(thread.warp)] |= 1u << thread.lane;
  std::int64_t at = address;
  for (Cell& cell : cells(thread, address, bytes, alignment, how)) {
    check_write(thread, at, cell, how);
    cell = {stamp(thread), static_cast<std::uint8_t>(thread.warp), false, {}};
    at += 2;
  }
  return shared + address;
}

void SharedMemory::begin_copy(ThreadPlace thread, std::int64_t address, int bytes, int alignment,
                              const char* how) {
  char* const target = write(thread, address, bytes, alignment, how);
  for (Cell& cell : cells(thread, address, bytes, alignment, how)) cell.in_flight = true;
  std::memset(target, kPoison, static_cast<std::size_t>(bytes));
}

char* SharedMemory::end_copy(ThreadPlace thread, std::int64_t address, int bytes) {
  for (Cell& cell : cells(thread, address, bytes, bytes, "cp.async")) {
    cell.in_flight = false;
    cell.written = stamp(thread);
  }
  return shared + address;
}

char* SharedMemory::end_bulk_copy(ThreadPlace thread, std::int64_t address, int bytes) {
  const int alignment = std::min(bytes, 16);  // of few bytes: cp.async that an mbarrier counts
  for (Cell& cell : cells(thread, address, bytes, alignment, "cp.async.bulk")) cell.in_flight = false;
  return shared + address;
}

SharedMemory::Knowledge SharedMemory::publish(ThreadPlace thread) {
  const auto warp = static_cast<std::size_t>(thread.warp);
  Knowledge published = known_[warp];
  const bool others = (accessing_[warp] & ~(1u << thread.lane)) != 0;
  published[warp] = others ? clock_[warp] - 1 : clock_[warp]++;
  if (!others) accessing_[warp] = 0;
  return published;
}

void SharedMemory::learn(ThreadPlace thread, const Knowledge& knowledge) {
  Knowledge& known = known_[static_cast<std::size_t>(thread.warp)];
  for (std::size_t v = 0; v < known.size(); ++v) known[v] = std::max(known[v], knowledge[v]);
}

void SharedMemory::join(std::span<const int> warps) {
  Knowledge joint{};
  for (const int warp : warps) {
    const auto w = static_cast<std::size_t>(warp);
    known_[w][w] = clock_[w];
    for (std::size_t v = 0; v < joint.size(); ++v) joint[v] = std::max(joint[v], known_[w][v]);
  }
  for (const int warp : warps) {
    known_[static_cast<std::size_t>(warp)] = joint;
    ++clock_[static_cast<std::size_t>(warp)];
    accessing_[static_cast<std::size_t>(warp)] = 0;
  }
}

}  // namespace onepass::emulator
