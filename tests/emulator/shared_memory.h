// The shared memory of the running block, and who touched which bytes of it when.
//
// Two accesses of which one writes need a barrier between them. Each warp has a clock that ticks at its
// barriers, and knows of every other warp the clock at their last common barrier, direct or through others.
// An access leaves its warp, lane and clock with every two bytes; a later one in conflict with it must know
// that clock (the vector clocks of FastTrack, Flanagan and Freund 2009). Nothing depends on the order in
// which the emulator runs the threads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace onepass::emulator {

/// A thread of the running block.
struct ThreadPlace {
  int warp, lane;
};

class SharedMemory {
 public:
  static constexpr int kCapacity = 227 * 1024;  // the most that a block of any GPU can have
  static constexpr int kMaxWarps = 12;
  static constexpr unsigned char kPoison = 0xff;  // NaN in f16, bf16 and f32

  /// Of the running block.
  static SharedMemory& instance();

  /// Block `rank` of the cluster runs on from here.
  static void select(int rank);
  static constexpr int kMostRanks = 16;
  static SharedMemory& of_rank(int rank);

  /// Everything is poison, nobody has touched anything.
  void begin_block(int bytes);

  /// Address 0 is the first byte. Each is a fault unless the bytes exist, the address is a multiple of
  /// `alignment`, and no access of another thread is in conflict. `how` is the instruction, for the message.
  const char* read(ThreadPlace thread, std::int64_t address, int bytes, int alignment, const char* how);
  char* write(ThreadPlace thread, std::int64_t address, int bytes, int alignment, const char* how);

  /// From here to end_copy the bytes are poison, and touching them is a fault.
  void begin_copy(ThreadPlace thread, std::int64_t address, int bytes, int alignment, const char* how);
  char* end_copy(ThreadPlace thread, std::int64_t address, int bytes);
  /// The same for a copy that an mbarrier counts: `thread` issued it.
  char* end_bulk_copy(ThreadPlace thread, std::int64_t address, int bytes);

  /// For a thread of another block: what came before the last barrier of all warps.
  const char* read_from_outside(std::int64_t address, int bytes);

  /// These warps have come to a barrier together.
  void join(std::span<const int> warps);

  /// Clocks of all warps, as far as somebody knows them.
  using Knowledge = std::array<std::uint32_t, kMaxWarps>;
  /// What who waits for this thread's arrival at an mbarrier learns: its own accesses, and those of its warp
  /// before their last barrier. Where other lanes have accessed memory since, not even its own: they need a
  /// barrier.
  Knowledge publish(ThreadPlace thread);
  void learn(ThreadPlace thread, const Knowledge& knowledge);

  /// Whether a pointer leads into shared memory, and where.
  static bool contains(const void* pointer);
  static std::int64_t address_of(const void* pointer);

 private:
  // Clock << 6 | lane; lane kManyLanes: more than one lane of the warp read at this clock.
  using Stamp = std::uint32_t;
  static constexpr std::uint32_t kManyLanes = 63;

  struct Cell {  // two bytes
    Stamp written = 0;
    std::uint8_t writer_warp = 0;
    bool in_flight = false;
    std::array<Stamp, kMaxWarps> read{};
  };

  SharedMemory();
  std::span<Cell> cells(ThreadPlace thread, std::int64_t address, int bytes, int alignment, const char* how);
  Stamp stamp(ThreadPlace thread) const;
  bool ordered(ThreadPlace thread, int other_warp, Stamp other) const;
  void check_write(ThreadPlace thread, std::int64_t address, const Cell& cell, const char* how) const;
  [[noreturn]] void conflict(ThreadPlace thread, std::int64_t address, const char* how, int other_warp,
                             Stamp other, const char* other_did) const;

  int bytes_ = 0;
  std::vector<char> kept_;   // the bytes, while another block of the cluster runs
  std::uint32_t start_ = 0;  // clocks up to here belong to earlier blocks
  Knowledge clock_{};
  std::array<Knowledge, kMaxWarps> known_{};          // [warp][other]: other's clock
  std::array<std::uint32_t, kMaxWarps> accessing_{};  // lanes that have accessed memory at their warp's clock
  std::vector<Cell> cells_;
};

}  // namespace onepass::emulator
