#include "plan/step_occupancy.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "plan/make_plan.h"
#include "plan/planned_kernel.h"
#include "store/bundle_writer.h"
#include "store/kernel_resources.h"
#include "store/store.h"
#include "tests/unit/dispatch/invented.h"
#include "tests/unit/store/temporary_folder.h"

namespace onepass {
namespace {

using testing::bf16_problem;
using ::testing::Optional;

Plan plan_on(const char* device, const AttentionProblem& problem, int num_splits = 0) {
  return make_plan("plan", problem, {.backend = Backend::Cuda, .num_splits = num_splits},
                   find_device(device).value());
}

AttentionProblem causal(AttentionProblem problem) {
  problem.causal = Causal::BottomRight;
  return problem;
}

StepOccupancy without_bundle(const Plan& plan) {
  return step_occupancy(plan, plan.steps.front(), Bundle::none("a test has none")).value();
}

/// The occupancy of the first step where a bundle says that its kernel has so many registers.
StepOccupancy with_bundle(const Plan& plan, int registers) {
  constexpr std::uint64_t kSources = 42;
  const testing::TemporaryFolder folder;
  const std::string path = (folder.path / "kernels.bundle").string();
  std::ofstream(path, std::ios::binary) << bundle_bytes(
      {kSources,
       13,
       0,
       {{"image", plan.steps.front().kernel, ImageKind::Cubin, KernelOrigin::Compiled, registers}}});
  return step_occupancy(plan, plan.steps.front(), Bundle::open(path, kSources)).value();
}

TEST(step_occupancy, of_a_hopper_kernel_counts_the_tiles_of_a_block) {
  const Plan plan = plan_on("h200", bf16_problem(4, 16, 4, 4096, 4096, 128));
  const StepOccupancy o = without_bundle(plan);
  EXPECT_EQ(o.query_buffers, 2);
  EXPECT_EQ(o.key_value_stages, 2);
  EXPECT_EQ(o.shared_bytes, static_cast<std::int64_t>(shared_bytes(plan.steps[0].gpu_kernel->spec)));
  EXPECT_EQ(o.shared_bytes_per_processor, 228 << 10);
  EXPECT_EQ(o.limits.blocks(), 1);
  EXPECT_TRUE(o.exact_blocks) << "shared memory holds one, whatever the registers";
  EXPECT_EQ(o.blocks_at_once, 132);
  EXPECT_EQ(o.num_tiles, 32 * 16 * 4);
  EXPECT_THAT(o.rounds, Optional(2048.0 / 132));
  EXPECT_THAT(o.last_round, Optional((2048.0 - 15 * 132) / 132));
}

TEST(step_occupancy, of_a_hopper_kernel_does_not_count_what_fills_up_the_last_group_of_heads) {
  const Plan plan = plan_on("h200", causal(bf16_problem(1, 19, 19, 8192, 8192, 128)));
  EXPECT_EQ(plan.steps[0].gpu_kernel->sm90_order.num_tiles, 64 * 21);
  EXPECT_EQ(without_bundle(plan).num_tiles, 64 * 19);
}

TEST(step_occupancy, of_few_tiles_says_how_little_of_the_gpu_works) {
  const StepOccupancy o = without_bundle(plan_on("h200", bf16_problem(1, 2, 2, 300, 300, 128)));
  EXPECT_EQ(o.blocks_at_once, 6);
  EXPECT_THAT(o.rounds, Optional(1.0));
  EXPECT_THAT(o.last_round, Optional(6.0 / 132));
}

TEST(step_occupancy, of_lengths_known_to_the_gpu_alone_is_an_upper_bound) {
  AttentionProblem problem = bf16_problem(4, 16, 4, 4096, 4096, 128);
  problem.has_seqused_q = true;
  const Plan plan = plan_on("h200", problem);
  ASSERT_EQ(plan.steps.size(), 2u);
  const Bundle none = Bundle::none("a test has none");
  EXPECT_EQ(step_occupancy(plan, plan.steps[0], none), std::nullopt) << "rows of no sequence";
  const StepOccupancy o = step_occupancy(plan, plan.steps[1], none).value();
  EXPECT_THAT(o.rounds, Optional(2048.0 / 132));
  EXPECT_FALSE(o.exact_rounds);
  EXPECT_EQ(o.last_round, std::nullopt);
}

TEST(step_occupancy, without_machine_code_has_the_bound_of_the_kernels_name) {
  const Plan plan = plan_on("h200", bf16_problem(1, 32, 8, 1, 32768, 120), 1);
  const StepOccupancy o = without_bundle(plan);
  EXPECT_EQ(o.registers_from, RegistersFrom::LaunchBound);
  EXPECT_EQ(o.registers, register_budget(plan.steps[0].gpu_kernel->spec));
  EXPECT_EQ(o.limits.blocks(), 2) << "registers: shared memory would hold more";
  EXPECT_FALSE(o.exact_blocks);
  EXPECT_FALSE(o.exact_rounds);
  EXPECT_THAT(o.rounds, Optional(8.0 / 264));
  EXPECT_EQ(o.last_round, std::nullopt);
}

TEST(step_occupancy, with_a_bundle_has_the_registers_of_its_machine_code) {
  const Plan plan = plan_on("h200", bf16_problem(1, 32, 8, 1, 32768, 120), 1);
  const StepOccupancy o = with_bundle(plan, 128);
  EXPECT_EQ(o.registers_from, RegistersFrom::Bundle);
  EXPECT_EQ(o.registers, 128);
  EXPECT_EQ(o.limits.by_registers, 4);
  EXPECT_EQ(o.blocks_at_once, 132 * o.limits.blocks());
  EXPECT_TRUE(o.exact_blocks);
  EXPECT_THAT(o.last_round, Optional(8.0 / static_cast<double>(o.blocks_at_once)));
}

TEST(step_occupancy, of_waves_has_the_share_of_the_last_one) {
  const Plan plan = plan_on("a100", bf16_problem(2, 32, 8, 1024, 1024, 128));
  const StepOccupancy o = with_bundle(plan, 255);
  EXPECT_EQ(plan.steps[0].num_work_items, 8 * 32 * 2);
  EXPECT_EQ(o.blocks_at_once, 216);
  EXPECT_EQ(o.num_tiles, std::nullopt);
  EXPECT_THAT(o.rounds, Optional(512.0 / 216));
  EXPECT_THAT(o.last_round, Optional(80.0 / 216));
}

TEST(step_occupancy, of_whole_waves_fills_the_last_one) {
  const Plan plan = plan_on("a100", bf16_problem(1, 27, 27, 1024, 1024, 128));
  EXPECT_THAT(with_bundle(plan, 255).rounds, Optional(1.0));
  EXPECT_THAT(with_bundle(plan, 255).last_round, Optional(1.0));
}

TEST(step_occupancy, of_a_loaded_kernel_is_what_the_driver_says) {
  const Plan plan = plan_on("h200", bf16_problem(1, 32, 8, 1, 32768, 120), 1);
  const LoadedKernel loaded = {.registers = 168};
  plan.steps.front().gpu_kernel->loaded = &loaded;
  const StepOccupancy o = with_bundle(plan, 128);
  EXPECT_EQ(o.registers_from, RegistersFrom::Loaded);
  EXPECT_EQ(o.registers, 168);
  EXPECT_EQ(o.limits.by_registers, 3);
}

TEST(step_occupancy, of_decode_is_two_blocks_with_a_ring_that_keys_and_values_share) {
  const Plan plan = plan_on("h200", bf16_problem(1, 32, 8, 1, 32768, 128), 1);
  ASSERT_EQ(plan.implementation, "sm90_decode");
  const StepOccupancy o = without_bundle(plan);
  EXPECT_EQ(o.query_buffers, 0) << "in registers";
  EXPECT_EQ(o.key_value_stages, 3);
  EXPECT_TRUE(o.key_value_share);
  EXPECT_EQ(o.registers, 168) << "ten warps in four partitions";
  EXPECT_EQ(o.limits.blocks(), 2);
  EXPECT_THAT(o.rounds, Optional(8.0 / 264));
}

TEST(step_occupancy, of_decode_in_blocks_that_stay_counts_tiles_whose_keys_are_shared_out) {
  AttentionProblem problem = bf16_problem(40, 32, 8, 1, 32768, 128);
  problem.has_seqused_k = true;
  const Plan plan = plan_on("h200", problem, 0);
  ASSERT_EQ(plan.implementation, "sm90_decode");
  const StepOccupancy o = without_bundle(plan);
  EXPECT_EQ(o.blocks_at_once, 128);
  EXPECT_THAT(o.num_tiles, Optional(40 * 8));
  EXPECT_THAT(o.rounds, Optional(2.5));
  EXPECT_EQ(o.last_round, std::nullopt);
}

TEST(step_occupancy, of_decode_in_blocks_that_go_by_number_knows_the_last_round) {
  const StepOccupancy o = without_bundle(plan_on("h200", bf16_problem(32, 32, 8, 1, 32768, 128), 0));
  EXPECT_EQ(o.blocks_at_once, 128);
  EXPECT_THAT(o.num_tiles, Optional(32 * 8));
  EXPECT_THAT(o.rounds, Optional(2.0));
  EXPECT_THAT(o.last_round, Optional(128.0 / 132));
}

TEST(step_occupancy, of_a_gpu_without_room_for_a_block_has_no_rounds) {
  DeviceInfo device = find_device("a100").value();
  device.shared_bytes_per_block = 1024;
  const Plan plan =
      make_plan("plan", bf16_problem(1, 8, 8, 512, 512, 128), {.backend = Backend::Cuda}, device);
  EXPECT_EQ(without_bundle(plan).limits.blocks(), 0);
  EXPECT_EQ(without_bundle(plan).rounds, std::nullopt);
  EXPECT_THAT(plan.explain(), ::testing::HasSubstr("waves           none"));
}

TEST(step_occupancy, is_nothing_for_a_cpu) {
  const Plan plan = make_plan("plan", testing::dense_problem(1, 1, 1, 8, 8, 8), {}, testing::invented_cpu(2));
  EXPECT_EQ(step_occupancy(plan, plan.steps.front(), Bundle::none("")), std::nullopt);
}

TEST(step_occupancy, of_waves_is_told_as_such) {
  const Plan plan = plan_on("l40s", bf16_problem(1, 32, 8, 2048, 2048, 256));
  EXPECT_THAT(
      plan.explain(),
      ::testing::HasSubstr(
          "\n  waves           7.21, with 142 blocks at once; the last wave fills 21 % of the GPU\n"));
}

TEST(step_occupancy, is_told_under_its_step) {
  const std::string text = plan_on("h200", causal(bf16_problem(2, 32, 8, 4096, 4096, 128))).explain();
  EXPECT_THAT(text, ::testing::ContainsRegex(
                        "\n"
                        "step 1            sm90_forward_[a-z0-9_]*: 132 blocks of 384 threads\n"
                        "  buffers         2 for Q, 2 for K and V each\n"
                        "  shared memory   192.4 KiB a block, 84 % of the 228.0 KiB of a multiprocessor\n"
                        "  registers       .* a thread.*\n"
                        "  occupancy       1 block a multiprocessor .shared memory 1, threads 5, .*\n"
                        "  tiles           2048 for 132 blocks that stay, 15.52 each; the last round fills "
                        "52 % of the GPU\n"
                        "tiles             128 rows"));
}

}  // namespace
}  // namespace onepass
