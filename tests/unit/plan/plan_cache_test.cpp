#include "plan/plan_cache.h"

#include <gmock/gmock.h>

#include "onepass/error.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::dense_problem;
using testing::invented_cpu;

std::shared_ptr<const Plan> plan_of_seqlen(std::int64_t seqlen) {
  return kept_plan("test", dense_problem(2, 8, 2, seqlen, 300, 64), {}, invented_cpu(2), 0);
}

TEST(plan_cache, gives_the_plan_of_an_equal_call_again) {
  const AttentionProblem problem = dense_problem(2, 8, 2, 100, 300, 64);
  const std::shared_ptr<const Plan> plan = kept_plan("test", problem, {}, invented_cpu(2), 0);
  EXPECT_EQ(plan->explain(), make_plan("test", problem, {}, invented_cpu(2)).explain());
  EXPECT_EQ(kept_plan("test", problem, {}, invented_cpu(2), 0), plan);
}

TEST(plan_cache, tells_apart_problem_request_device_and_its_index) {
  const AttentionProblem problem = dense_problem(2, 8, 2, 100, 300, 64);
  AttentionProblem other = problem;
  other.out.row += 8;
  const std::shared_ptr<const Plan> plan = kept_plan("test", problem, {}, invented_cpu(2), 0);
  EXPECT_NE(kept_plan("test", other, {}, invented_cpu(2), 0), plan);
  EXPECT_NE(kept_plan("test", problem, {.num_threads = 1}, invented_cpu(2), 0), plan);
  EXPECT_NE(kept_plan("test", problem, {}, invented_cpu(3), 0), plan);
  EXPECT_NE(kept_plan("test", problem, {}, invented_cpu(2), 1), plan);
}

TEST(plan_cache, keeps_those_used_last) {
  const std::shared_ptr<const Plan> used = plan_of_seqlen(1), unused = plan_of_seqlen(2);
  for (std::size_t i = 0; i < kKeptPlans; ++i) {
    EXPECT_EQ(plan_of_seqlen(1), used);
    plan_of_seqlen(3 + static_cast<std::int64_t>(i));
  }
  EXPECT_NE(plan_of_seqlen(2), unused);
  EXPECT_EQ(unused->problem->seqlen_q, 2) << "a plan in use outlives its place";
}

TEST(plan_cache, does_not_keep_a_refusal) {
  const AttentionProblem problem = dense_problem(2, 8, 2, 100, 300, 64);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(kept_plan("test", problem, {.backend = Backend::Cuda}, invented_cpu(2), 0), NotSupported);
  }
}

}  // namespace
}  // namespace onepass
