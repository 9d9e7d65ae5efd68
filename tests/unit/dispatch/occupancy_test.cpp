#include "dispatch/occupancy.h"

#include <gtest/gtest.h>

#include "plan/common_kernels.h"
#include "store/kernel_resources.h"

namespace onepass {
namespace {

constexpr const char* kSm80 = "sm80_forward_bf16_d128_v128_m128n64w4c1s1b2_l16s16_sm80";
constexpr const char* kSm90 = "sm90_forward_bf16_d128_v128_m128n128w12c1s2b1_l16s16_q2_sm90";

Occupancy on(const char* device, const char* kernel, int registers) {
  return occupancy(parse_kernel_name(kernel), find_device(device).value(), registers);
}

TEST(occupancy, shared_memory_of_a_block_is_what_it_asks_for_and_what_the_system_keeps) {
  // 128 rows of Q and 64 each of K and V, of 256 bytes: 64 KiB, and 1 KiB for the system.
  EXPECT_EQ(on("a100", kSm80, 255).by_shared_memory, 2) << "164 KiB";
  EXPECT_EQ(on("h100", kSm80, 255).by_shared_memory, 3) << "228 KiB";
  EXPECT_EQ(on("l40s", kSm80, 255).by_shared_memory, 1) << "100 KiB";
  EXPECT_EQ(shared_bytes_per_processor(find_device("a100").value()), 164 << 10);
}

TEST(occupancy, registers_are_given_to_warps_in_pieces_of_256_from_four_partitions) {
  // A partition has 16384. 168 registers of 32 threads are 5376: three warps in each partition.
  EXPECT_EQ(on("h200", kSm90, 168).by_registers, 1);
  EXPECT_EQ(on("a100", kSm80, 168).by_registers, 3);
  EXPECT_EQ(on("a100", kSm80, 169).by_registers, 2) << "5632: two warps in each partition";
  EXPECT_EQ(on("a100", kSm80, 128).by_registers, 4);
  EXPECT_EQ(on("a100", kSm80, 32).by_registers, 16);
}

TEST(occupancy, threads_and_blocks_have_limits_of_their_own) {
  EXPECT_EQ(on("a100", kSm80, 255).by_threads, 16) << "2048 threads";
  EXPECT_EQ(on("l40s", kSm80, 255).by_threads, 12) << "1536 threads";
  EXPECT_EQ(on("h200", kSm90, 168).by_threads, 5);
  constexpr const char* kOneWarp = "sm80_forward_bf16_d16_v16_m16n16w1c1s1b1_l16s16_sm80";
  EXPECT_EQ(on("a100", kOneWarp, 32).by_threads, 32) << "blocks";
  EXPECT_EQ(on("l40s", kOneWarp, 32).by_threads, 24) << "blocks";
}

TEST(occupancy, the_scarcest_resource_decides) {
  EXPECT_EQ((Occupancy{3, 16, 2}).blocks(), 2);
  EXPECT_EQ((Occupancy{1, 16, 2}).blocks(), 1);
  EXPECT_EQ((Occupancy{3, 1, 2}).blocks(), 1);
}

TEST(occupancy, registers_of_every_common_kernel_at_its_budget_do_for_the_blocks_that_it_names) {
  for (const CommonKernel& kernel : common_kernels()) {
    const Occupancy o = occupancy(kernel.spec, find_device("h200").value(), register_budget(kernel.spec));
    EXPECT_GE(o.by_registers, kernel.spec.min_blocks) << kernel_name(kernel.spec);
  }
}

}  // namespace
}  // namespace onepass
