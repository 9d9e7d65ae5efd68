// What the emulator has to notice, each fault in a few lines of device code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>

#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "tests/emulator/block.h"
#include "tests/emulator/plain_access.h"
#include "tests/emulator/tensor_map.h"

namespace onepass::emulator {
namespace {

using ::testing::HasSubstr;

constexpr int kSharedBytes = 1024;
alignas(16) constexpr unsigned char kGlobal[kSharedBytes] = {1, 2, 3};

/// The fault of one block; empty when there is none.
std::string fault_of(int num_threads, const std::function<void()>& kernel) {
  try {
    launch(kernel, 1, num_threads, kSharedBytes);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return {};
}

int thread() { return static_cast<int>(threadIdx.x); }
int warp() { return thread() / 32; }
void write(int slot) { cuda::store_shared(static_cast<cuda::Uint32>(4 * slot), cuda::Uint32{1}); }
void read(int slot) { read_shared(4 * slot, 4, 4, "ld.shared"); }
void copy(int slot) { cuda::cp_async<16>(static_cast<cuda::Uint32>(16 * slot), kGlobal, 16); }

TEST(emulator, a_barrier_between_write_and_read_of_two_threads_is_needed) {
  EXPECT_EQ(fault_of(64, [] { write(thread()), __syncthreads(), read(63 - thread()); }), "");
  const std::string fault = fault_of(64, [] { write(thread()), read(63 - thread()); });
  EXPECT_THAT(fault, HasSubstr("ld.shared"));
}

TEST(emulator, what_a_later_block_writes_over_an_earlier_one_is_no_race) {
  launch([] { write(63 - thread()); }, 3, 64, kSharedBytes);
}

TEST(emulator, a_read_before_a_later_write_of_another_thread_needs_a_barrier) {
  const auto kernel = [](bool with_barrier) {
    write(thread());
    __syncthreads();
    read(0);
    if (with_barrier) __syncthreads();
    if (thread() == 40) write(0);
  };
  EXPECT_EQ(fault_of(64, [&] { kernel(true); }), "");
  EXPECT_THAT(fault_of(64, [&] { kernel(false); }),
              HasSubstr("race at byte 0 of shared memory: st.shared by thread 40, which"));
}

TEST(emulator, lanes_of_a_warp_need_syncwarp) {
  EXPECT_EQ(fault_of(32, [] { write(thread()), __syncwarp(), read(31 - thread()); }), "");
  const auto shuffled = [] { write(thread()), __shfl_xor_sync(~0u, 0.0f, 1), read(31 - thread()); };
  EXPECT_THAT(fault_of(32, shuffled), HasSubstr("wrote with no barrier between"));
}

TEST(emulator, a_named_barrier_orders_its_own_warps_only) {
  const auto kernel = [](int reader) {
    if (warp() == 0) write(thread());
    if (warp() < 2) cuda::named_barrier_sync(1, 64);
    if (warp() == 2) __syncwarp();
    if (warp() == reader) read(0);
  };
  EXPECT_EQ(fault_of(96, [&] { kernel(1); }), "");
  EXPECT_THAT(fault_of(96, [&] { kernel(2); }), HasSubstr("which thread 0 wrote with no barrier between"));
}

TEST(emulator, those_that_arrive_at_a_named_barrier_go_on_and_those_that_wait_see_what_they_did_before) {
  const auto kernel = [](int written_late) {
    if (warp() == 0) {
      write(thread());
      cuda::named_barrier_arrive(1, 64);
      if (thread() == written_late) write(thread());
    } else {
      cuda::named_barrier_sync(1, 64);
      read(0);
    }
  };
  EXPECT_EQ(fault_of(64, [&] { kernel(1); }), "");
  EXPECT_THAT(fault_of(64, [&] { kernel(0); }), HasSubstr("with no barrier between"));
}

TEST(emulator, who_arrives_at_a_named_barrier_does_not_learn_what_others_did) {
  const auto kernel = [] {
    if (warp() == 0) {
      write(thread());
      cuda::named_barrier_sync(1, 64);
    } else {
      cuda::named_barrier_arrive(1, 64);
      read(0);
    }
  };
  EXPECT_THAT(fault_of(64, kernel), HasSubstr("with no barrier between"));
}

TEST(emulator, a_warp_that_arrives_twice_before_the_others_is_noticed) {
  const auto kernel = [] {
    if (warp() == 0) cuda::named_barrier_arrive(1, 128);
    cuda::named_barrier_arrive(1, 128);
  };
  EXPECT_THAT(fault_of(64, kernel), HasSubstr("for the second time"));
}

TEST(emulator, a_barrier_that_some_threads_never_reach_is_a_deadlock_with_its_name) {
  const std::string fault = fault_of(96, [] {
    if (warp() == 0) return;
    warp() == 1 ? __syncthreads() : cuda::named_barrier_sync(3, 64);
  });
  EXPECT_EQ(
      fault,
      "block 0: deadlock: threads 32-63 wait for barrier 0 (__syncthreads); threads 64-95 wait for named "
      "barrier 3; threads 0-31 wait for nothing, having ended");
}

TEST(emulator, half_a_warp_cannot_wait_at_a_barrier) {
  const auto kernel = [] {
    if (thread() % 32 < 16) cuda::named_barrier_sync(1, 32);
  };
  EXPECT_THAT(fault_of(64, kernel),
              HasSubstr("named barrier 1 was met by parts of warps: threads 0-15, 32-47"));
}

TEST(emulator, lanes_at_different_instructions_are_noticed) {
  const auto kernel = [] { thread() == 5 ? __syncwarp() : static_cast<void>(__any_sync(~0u, true)); };
  EXPECT_THAT(fault_of(32, kernel), HasSubstr("thread 5 is at __syncwarp, others at vote"));
}

TEST(emulator, an_asynchronous_copy_is_there_after_wait_and_barrier) {
  const auto kernel = [](bool commit, bool wait, bool barrier) {
    copy(thread());
    if (commit) cuda::cp_async_commit();
    if (wait) cuda::cp_async_wait<0>();
    if (barrier) __syncthreads();
    read(4 * (thread() / 2));  // what an earlier thread copies
  };
  EXPECT_EQ(fault_of(64, [&] { kernel(true, true, true); }), "");
  EXPECT_THAT(fault_of(64, [&] { kernel(true, true, false); }), HasSubstr("wrote with no barrier"));
  EXPECT_THAT(fault_of(64, [&] { kernel(true, false, true); }), HasSubstr("copies without having waited"));
  EXPECT_THAT(fault_of(64, [&] { kernel(false, true, true); }), HasSubstr("copies without having waited"));
}

TEST(emulator, a_wait_leaves_the_newest_groups_pending) {
  const auto kernel = [](int slot) {
    for (int n = 0; n < 2; ++n) copy(2 * thread() + n), cuda::cp_async_commit();
    cuda::cp_async_wait<1>();
    read(4 * (2 * thread() + slot));
    cuda::cp_async_wait<0>();
  };
  EXPECT_EQ(fault_of(32, [&] { kernel(0); }), "");
  EXPECT_THAT(fault_of(32, [&] { kernel(1); }), HasSubstr("copies without having waited"));
}

TEST(emulator, a_copy_over_what_others_still_read_is_a_race) {
  const auto kernel = [] {
    write(thread());
    __syncthreads();
    read(thread());
    if (thread() == 40) copy(0);
  };
  EXPECT_THAT(fault_of(64, kernel), HasSubstr("cp.async by thread 40, which thread 0 read with no barrier"));
}

TEST(emulator, a_copy_that_nobody_waits_for_is_noticed) {
  const auto kernel = [] { copy(thread()), cuda::cp_async_commit(); };
  EXPECT_THAT(fault_of(32, kernel),
              HasSubstr("thread 0 ends without having waited for its cp.async to byte 0"));
}

// ---- mbarriers and the copies that they count. The barrier is at byte 512.

constexpr int kBarrierByte = 512;

/// 16 rows of 64 elements, each its index.
constexpr std::array<std::uint16_t, 16 * 64> kRows = [] {
  std::array<std::uint16_t, 16 * 64> rows{};
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint16_t>(i + 1);
  return rows;
}();

/// One thread makes it; all know of it then.
void make_mbarrier(int num_arrivals) {
  if (thread() == 0) init_mbarrier(kBarrierByte, num_arrivals);
  __syncthreads();
}
void arrive(int expected_bytes = 0) { arrive_at_mbarrier(kBarrierByte, expected_bytes); }
void await(int parity) { wait_for_mbarrier(kBarrierByte, parity); }
void plain_bulk_copy(int bytes) {
  issue_bulk_copy(kBarrierByte, 0, bytes, [bytes](char* target) { std::memset(target, 0, bytes); });
}

TEST(emulator, an_mbarrier_orders_what_came_before_arrivals_with_what_comes_after_waiting) {
  const auto kernel = [](bool waits, bool syncs) {
    make_mbarrier(1);
    if (warp() == 0) {
      write(thread());
      if (syncs) __syncwarp();
      if (thread() == 0) arrive();
    } else {
      if (waits) await(0);
      read(63 - thread());
    }
  };
  EXPECT_EQ(fault_of(64, [&] { kernel(true, true); }), "");
  EXPECT_THAT(fault_of(64, [&] { kernel(false, true); }), HasSubstr("which nobody has written"))
      << "the reader runs first";
  EXPECT_THAT(fault_of(64, [&] { kernel(true, false); }), HasSubstr("wrote with no barrier between"));
}

TEST(emulator, a_phase_that_is_over_is_not_waited_for) {
  EXPECT_EQ(fault_of(32, [] { make_mbarrier(1), await(1); }), "") << "the one before the first";
  EXPECT_EQ(fault_of(32, [] { make_mbarrier(32), arrive(), await(0), arrive(), await(1); }), "");
}

TEST(emulator, a_phase_without_its_arrivals_or_bytes_is_a_deadlock_that_says_so) {
  EXPECT_EQ(fault_of(32, [] { make_mbarrier(2), thread() == 0 ? arrive() : await(0); }),
            "block 0: deadlock: threads 1-31 wait for 1 arrivals and 0 bytes at the mbarrier at byte 512; "
            "threads 0 "
            "wait for nothing, having ended");
  EXPECT_THAT(fault_of(32, [] { make_mbarrier(1), thread() == 0 ? arrive(64) : await(0); }),
              HasSubstr("0 arrivals and 64 bytes at the mbarrier"));
}

TEST(emulator, one_arrival_too_many_is_noticed) {
  const auto kernel = [] {
    make_mbarrier(1);
    if (thread() == 0) arrive(64), arrive(0);
  };
  EXPECT_THAT(fault_of(32, kernel), HasSubstr("whose phase has all its 1 arrivals"));
}

TEST(emulator, a_bulk_copy_is_there_when_its_phase_was_waited_for) {
  const auto kernel = [](bool waits) {
    make_mbarrier(1);
    if (thread() == 0) arrive(64), plain_bulk_copy(64);
    __syncthreads();
    if (waits) await(0);
    if (warp() == 1) read(thread() % 16);
  };
  EXPECT_EQ(fault_of(64, [&] { kernel(true); }), "");
  EXPECT_THAT(fault_of(64, [&] { kernel(false); }), HasSubstr("copies without having waited"));
}

TEST(emulator, asynchronous_copies_that_an_mbarrier_is_told_of_are_there_when_its_phase_was_waited_for) {
  const auto kernel = [](bool waits) {
    make_mbarrier(32);
    if (warp() == 0) {
      if (thread() < 16) copy(thread());
      __syncwarp();
      arrive_after_copies(kBarrierByte);
    }
    __syncthreads();
    if (waits) await(0);
    if (warp() == 1) read(thread() % 16);
  };
  EXPECT_EQ(fault_of(64, [&] { kernel(true); }), "");
  EXPECT_THAT(fault_of(64, [&] { kernel(false); }), HasSubstr("copies without having waited"));
  EXPECT_THAT(fault_of(32, [] { make_mbarrier(32), copy(thread()), arrive_after_copies(kBarrierByte); }),
              HasSubstr("nobody has waited at the mbarrier at byte 512 for the copy to byte"));
}

TEST(emulator, a_bulk_copy_over_what_others_still_read_is_a_race) {
  const auto kernel = [](bool with_barrier) {
    make_mbarrier(1);
    if (warp() == 1) write(thread() % 32), __syncwarp(), read(3);
    if (with_barrier) __syncthreads();
    if (thread() == 0) arrive(64), plain_bulk_copy(64);
    await(0);
  };
  EXPECT_EQ(fault_of(64, [&] { kernel(true); }), "");
  const auto late = [] {  // the reader has run first
    make_mbarrier(1);
    if (warp() == 0) write(thread()), __syncwarp(), read(3);
    if (thread() == 32) arrive(64), plain_bulk_copy(64);
    if (warp() == 1) await(0);
  };
  EXPECT_THAT(fault_of(64, late), HasSubstr("cp.async.bulk by thread 32, which"));
}

TEST(emulator, a_bulk_copy_that_nobody_waits_for_is_noticed) {
  const auto kernel = [] {
    make_mbarrier(1);
    if (thread() == 0) arrive(64), plain_bulk_copy(64);
  };
  EXPECT_THAT(fault_of(32, kernel),
              HasSubstr("nobody has waited at the mbarrier at byte 512 for the copy to byte 0"));
}

TEST(emulator, a_tensor_copy_swizzles_rows_and_gives_zeros_outside) {
  const EmulatedTensorMap map = {kRows.data(), {64, 16, 1, 1, 1}, {128, 128, 2048, 2048}, {64, 8, 1, 1, 1}};
  constexpr int kBarrier = 4096;
  std::array<std::uint16_t, 8 * 64> got{};
  const auto kernel = [&](int target, int row) {
    if (thread() == 0) {
      init_mbarrier(kBarrier, 1);
      arrive_at_mbarrier(kBarrier, 1024);
      issue_tensor_copy(to_tensor_map(map), kBarrier, target, {0, row, 0, 0, 0});
      wait_for_mbarrier(kBarrier, 0);
      for (int i = 0; i < 8 * 64; ++i) {
        const int plain = target + 2 * i, swizzled = plain ^ (plain >> 7 & 7) << 4;
        std::memcpy(&got[static_cast<std::size_t>(i)], read_shared(swizzled, 2, 2, "ld.shared"), 2);
      }
    }
  };
  launch([&] { kernel(1024, 12); }, 1, 32, 8192);
  for (int i = 0; i < 8 * 64; ++i) {
    const int element = 12 * 64 + i;
    EXPECT_EQ(got[static_cast<std::size_t>(i)], element < 16 * 64 ? element + 1 : 0) << i;
  }
  const auto misplaced = [&] {
    try {
      launch([&] { kernel(512, 0); }, 1, 32, 8192);
    } catch (const Fault& fault) {
      return std::string(fault.what());
    }
    return std::string();
  };
  EXPECT_THAT(misplaced(), HasSubstr("where the pattern does not begin"));
}

// ---- clusters

std::string fault_of_cluster(const std::function<void()>& kernel) {
  try {
    launch(kernel, {.blocks = 8, .num_threads = 64, .shared_bytes = kSharedBytes, .cluster_blocks = 4});
  } catch (const Fault& fault) {
    return fault.what();
  }
  return {};
}

TEST(emulator, blocks_of_a_cluster_read_each_others_memory_after_their_barrier) {
  const auto kernel = [](bool before, bool after) {
    const unsigned value = 10 * blockIdx.x;
    if (thread() < 32) std::memcpy(write_shared(4 * thread(), 4, 4, "st.shared"), &value, 4);
    if (before) sync_cluster();
    unsigned found = 0;
    std::memcpy(&found, read_cluster(static_cast<int>(blockIdx.x + 1) % 4, 0, 4), 4);
    if (found != 10 * (blockIdx.x / 4 * 4 + (blockIdx.x + 1) % 4)) fault("another block's value");
    if (after) sync_cluster();
  };
  EXPECT_EQ(fault_of_cluster([&] { kernel(true, true); }), "");
  if (ONEPASS_EMULATOR_HOOKS) {
    EXPECT_THAT(fault_of_cluster([&] { kernel(false, true); }),
                HasSubstr("which the block has not written before the cluster's barrier"));
  }
  EXPECT_THAT(fault_of_cluster([&] { kernel(true, false); }),
              HasSubstr("from block 0 of the cluster, which is not there"));
}

TEST(emulator, a_cluster_barrier_waits_for_threads_that_have_not_ended) {
  EXPECT_EQ(fault_of_cluster([] {
              if (warp() == 0) sync_cluster();
            }),
            "");
  EXPECT_THAT(fault_of_cluster([] { blockIdx.x == 1 && warp() == 1 ? __syncthreads() : sync_cluster(); }),
              HasSubstr("wait for the cluster's barrier"));
}

TEST(emulator, memory_that_nobody_wrote_or_that_is_not_there_is_not_read) {
  EXPECT_THAT(fault_of(32, [] { read(7); }),
              HasSubstr("ld.shared at byte 28 of shared memory, which nobody has"));
  EXPECT_THAT(fault_of(32, [] { read(kSharedBytes / 4); }),
              HasSubstr("ld.shared at bytes 1024 to 1027 of shared memory, and the block has 1024"));
  EXPECT_THAT(fault_of(32, [] { cuda::cp_async<16>(8, kGlobal, 16); }), HasSubstr("no multiple of 16"));
}

TEST(emulator, plain_loads_and_stores_are_seen) {
  if (!ONEPASS_EMULATOR_HOOKS) GTEST_SKIP() << "AddressSanitizer has the loads and stores of this build";
  EXPECT_EQ(fault_of(64, exchange_with_barrier), "");
  EXPECT_THAT(fault_of(64, exchange_without_barrier), HasSubstr("a load"));
}

}  // namespace
}  // namespace onepass::emulator
