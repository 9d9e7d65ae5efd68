#include "plan/cuda_plan.h"

#include <gmock/gmock.h>

#include "plan/planned_kernel.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::dense_problem;
using testing::packed_problem;

Plan h200_plan(const AttentionProblem& problem, int num_splits = 0) {
  return make_plan("plan", problem, {.backend = Backend::Cuda, .num_splits = num_splits},
                   find_device("h200").value());
}

TEST(cuda_plan, steps_have_their_kernel_as_the_value_that_their_name_tells) {
  const Plan plan = h200_plan(packed_problem(2, 8, 2, 100, 150, 4096, 5000, 128), 3);
  ASSERT_EQ(plan.steps.size(), 3u) << "rows of no sequence, attention, splits";
  const KernelFamily families[] = {KernelFamily::FillRows, KernelFamily::Sm80Forward,
                                   KernelFamily::MergeSplits};
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const PlanStep& step = plan.steps[i];
    ASSERT_NE(step.gpu_kernel, nullptr);
    EXPECT_EQ(step.gpu_kernel->spec, parse_kernel_name(step.kernel));
    EXPECT_EQ(step.gpu_kernel->spec.family, families[i]);
    EXPECT_EQ(num_threads(step.gpu_kernel->spec), step.num_threads);
  }
  EXPECT_EQ(forward_kernel(plan), &plan.steps[1].gpu_kernel->spec);
}

TEST(cuda_plan, copies_share_what_they_have_loaded) {
  const Plan plan = h200_plan(dense_problem(1, 8, 8, 128, 128, 64));
  const Plan copy = plan;
  EXPECT_EQ(copy.steps.front().gpu_kernel, plan.steps.front().gpu_kernel);
}

TEST(cuda_plan, without_queries_there_is_no_forward_kernel) {
  const Plan plan = h200_plan(packed_problem(2, 8, 2, 0, 40, 100, 200, 64));
  ASSERT_EQ(plan.steps.size(), 1u) << "rows of no sequence";
  EXPECT_EQ(forward_kernel(plan), nullptr);
}

TEST(cuda_plan, steps_of_a_cpu_have_no_gpu_kernel) {
  const Plan plan =
      make_plan("plan", dense_problem(2, 8, 2, 3, 4096, 64), {.num_splits = 5}, testing::invented_cpu(2));
  for (const PlanStep& step : plan.steps) EXPECT_EQ(step.gpu_kernel, nullptr);
}

}  // namespace
}  // namespace onepass
