// What a batch-invariant call runs follows from types, head sizes, masks, layouts and rows, not from the
// batch.
#include <gmock/gmock.h>

#include <set>
#include <string>

#include "plan/make_plan.h"
#include "plan/mixed_plan.h"
#include "plan/planned_kernel.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;

AttentionProblem invariant(AttentionProblem problem) {
  problem.batch_invariant = true;
  return problem;
}

AttentionProblem packed(std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k,
                        std::int64_t head_dim = 128) {
  AttentionProblem problem = testing::bf16_problem(batch, 32, 8, seqlen_q, seqlen_k, head_dim);
  problem.q_layout = problem.k_layout = SequenceLayout::Packed;
  problem.total_q = batch * seqlen_q;
  problem.total_k = batch * seqlen_k;
  problem.causal = Causal::BottomRight;
  return invariant(problem);
}

Plan plan_on(const char* name, const AttentionProblem& problem, int num_processors = 0) {
  DeviceInfo device = find_device(name).value();
  if (num_processors > 0) device.num_processors = num_processors;
  return make_plan("plan", problem, {.backend = Backend::Cuda}, device);
}

/// Names of the attention kernels, by the kinds of sequences.
std::vector<std::string> kernels_of(const Plan& plan) {
  if (plan.parts.empty()) {
    for (const PlanStep& step : plan.steps) {
      if (step.gpu_kernel->spec.family != KernelFamily::FillRows) return {step.kernel};
    }
    return {};
  }
  return {kernels_of(plan.parts[0]).at(0), kernels_of(plan.parts[1]).at(0)};
}

TEST(batch_invariance, kernels_of_packed_sequences_are_the_same_for_any_batch_lengths_and_gpu_size) {
  for (const char* name : {"h200", "a100"}) {
    SCOPED_TRACE(name);
    for (const std::int64_t head_dim : {64, 128, 256}) {
      const std::vector<std::string> both = kernels_of(plan_on(name, packed(64, 4000, 60000, head_dim)));
      ASSERT_EQ(both.size(), 2u);
      EXPECT_EQ(kernels_of(plan_on(name, packed(1, 100, 100, head_dim))), both);
      EXPECT_EQ(kernels_of(plan_on(name, packed(7, 40, 700, head_dim), 20)), both) << "fewer than 64 rows";
      EXPECT_EQ(kernels_of(plan_on(name, packed(300, 1, 60000, head_dim))), std::vector{both[1]});
      EXPECT_EQ(kernels_of(plan_on(name, packed(2, 3, 100, head_dim), 20)), std::vector{both[1]});
    }
  }
}

TEST(batch_invariance, dense_calls_are_of_few_rows_or_of_many) {
  const auto kernel = [](const char* name, std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k) {
    return kernels_of(plan_on(name, invariant(testing::bf16_problem(batch, 32, 8, seqlen_q, seqlen_k, 128))))
        .at(0);
  };
  EXPECT_EQ(kernel("h200", 1, 1, 100),
            "sm90_decode_bf16_d128_v128_m16n128w5c1s3b2_l16s16_pack_split_parts_sm90");
  EXPECT_EQ(kernel("h200", 64, 12, 90000), kernel("h200", 1, 1, 100));
  EXPECT_THAT(kernel("h200", 1, 13, 100), HasSubstr("sm90_forward_"));
  EXPECT_EQ(kernel("h200", 64, 2000, 90000), kernel("h200", 1, 13, 100));
  EXPECT_THAT(kernel("a100", 1, 16, 100), HasSubstr("_pack_split_parts_"));
  EXPECT_EQ(kernel("a100", 1, 17, 100), kernel("a100", 64, 2000, 90000));
}

TEST(batch_invariance, parts_are_of_2048_keys_and_have_room_for_few_rows_alone) {
  const Plan mixed = plan_on("h200", packed(4, 4000, 5000));
  EXPECT_EQ(mixed.implementation, kMixedForward);
  EXPECT_EQ(mixed.parts[0].num_splits, 1);
  const Plan& few = mixed.parts[1];
  EXPECT_EQ(few.num_splits, 3);
  ASSERT_EQ(few.workspace.size(), 3u);
  EXPECT_EQ(few.workspace[0].bytes, 3u * 4 * 32 * 12 * 128 * sizeof(float)) << "12 rows of each sequence";
  EXPECT_THAT(few.explain(), HasSubstr("up to 3 parts of 2048 keys from a sequence's first"));
  EXPECT_THAT(few.explain(), HasSubstr("batch invariant"));
}

TEST(batch_invariance, the_cpu_cuts_keys_by_their_number_alone_and_keeps_its_tiles_of_rows) {
  const auto plan_for = [](AttentionProblem problem, int num_threads) {
    return make_plan("plan", problem, {.backend = Backend::Cpu, .num_threads = num_threads},
                     testing::invented_cpu(8));
  };
  AttentionProblem decode = invariant(testing::dense_problem(1, 8, 2, 1, 9000, 64));
  EXPECT_EQ(plan_for(decode, 1).num_splits, 5);
  EXPECT_EQ(plan_for(decode, 8).num_splits, 5);
  decode.batch = 64;
  EXPECT_EQ(plan_for(decode, 8).num_splits, 5);
  EXPECT_EQ(plan_for(invariant(testing::dense_problem(1, 8, 2, 17, 9000, 64)), 8).num_splits, 1)
      << "68 rows of a key head";
}

}  // namespace
}  // namespace onepass
