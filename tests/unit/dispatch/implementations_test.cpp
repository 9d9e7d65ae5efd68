#include "dispatch/implementations.h"

#include <gmock/gmock.h>

#include <tuple>

#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::bf16_problem;
using testing::dense_problem;
using ::testing::HasSubstr;
using testing::invented_cpu;

std::string message_of_not_supported(const AttentionProblem& problem, const PlanRequest& request,
                                     const DeviceInfo& device) {
  try {
    make_plan("plan", problem, request, device);
  } catch (const NotSupported& error) {
    return error.what();
  }
  return "no exception";
}

TEST(implementations, are_asked_fastest_first) {
  std::vector<std::string> names;
  for (const Implementation& implementation : implementations()) names.push_back(implementation.name);
  EXPECT_EQ(names, (std::vector<std::string>{"sm90_forward", "sm90_decode", "sm80_forward", "cpu_simd",
                                             "cpu_reference"}));
}

TEST(implementations, of_backward_calls_are_a_list_of_their_own) {
  std::vector<std::string> names;
  for (const Implementation& implementation : backward_implementations())
    names.push_back(implementation.name);
  EXPECT_EQ(names, (std::vector<std::string>{"sm90_backward", "sm80_backward", "cpu_simd", "cpu_reference"}));
}

TEST(implementations, auto_on_a_cpu_takes_simd_and_says_why_not_cuda) {
  const Plan plan = make_plan("plan", dense_problem(1, 2, 1, 8, 8, 64), {}, invented_cpu(2));
  EXPECT_EQ(plan.implementation, "cpu_simd");
  ASSERT_EQ(plan.declines.size(), 3u);
  EXPECT_EQ(plan.declines[0].implementation, "sm90_forward");
  EXPECT_EQ(plan.declines[1].implementation, "sm90_decode");
  EXPECT_EQ(plan.declines[2].implementation, "sm80_forward");
  for (const Decline& decline : plan.declines) {
    EXPECT_EQ(decline.reason, "runs on an NVIDIA GPU, and the device is a CPU");
  }
}

TEST(implementations, reference_runs_only_when_asked_for) {
  const AttentionProblem problem = dense_problem(1, 2, 1, 8, 8, 64);
  EXPECT_EQ(make_plan("plan", problem, {.backend = Backend::Cpu}, invented_cpu(2)).implementation,
            "cpu_simd");
  const Plan plan = make_plan("plan", problem, {.backend = Backend::Reference}, invented_cpu(2));
  EXPECT_EQ(plan.implementation, "cpu_reference");
  ASSERT_EQ(plan.declines.size(), 4u);
  for (const Decline& decline : plan.declines) EXPECT_EQ(decline.reason, "backend 'reference' was asked for");
}

TEST(implementations, a_gpu_gets_an_error_with_the_problem_and_every_reason) {
  AttentionProblem problem = dense_problem(2, 32, 4, 512, 512, 128);
  problem.q_dtype = problem.kv_dtype = DType::F32;
  const std::string message = message_of_not_supported(problem, {}, *find_device("h200"));
  EXPECT_THAT(message, HasSubstr("plan: no implementation on h200 takes " + to_string(problem)));
  EXPECT_THAT(message, HasSubstr("sm90_forward declines (takes f16 and bf16, and q is f32)"));
  EXPECT_THAT(message, HasSubstr("sm80_forward declines (takes f16 and bf16, and q is f32)"));
  EXPECT_THAT(message, HasSubstr("cpu_simd declines (runs on a CPU, and the device is h200)"));
  EXPECT_THAT(message, HasSubstr("cpu_reference declines (runs only when backend 'reference' is asked for"));
  EXPECT_THAT(message, HasSubstr("\n  Allowed: "));
  EXPECT_THAT(message, HasSubstr("\n  Fix: "));
}

TEST(implementations, hopper_has_its_own_prefill_and_decode_and_sm80_forward_the_rest_with_the_reasons) {
  const DeviceInfo h200 = *find_device("h200");
  const AttentionProblem prefill = bf16_problem(2, 32, 4, 512, 512, 128);
  EXPECT_EQ(make_plan("plan", prefill, {}, h200).implementation, "sm90_forward");
  EXPECT_EQ(make_plan("plan", prefill, {}, *find_device("a100")).implementation, "sm80_forward");
  const AttentionProblem decode = bf16_problem(2, 32, 4, 1, 512, 128);
  EXPECT_EQ(make_plan("plan", decode, {}, h200).implementation, "sm90_decode");
  EXPECT_EQ(make_plan("plan", decode, {}, *find_device("a100")).implementation, "sm80_forward");

  AttentionProblem odd = prefill, pages = prefill, bias = decode;
  odd.head_dim_v = 100;
  pages.k_layout = SequenceLayout::Paged;
  pages.page_size = 1;
  bias.has_bias = true;
  const std::tuple<AttentionProblem, std::string, std::string> others[] = {
      {odd, "takes head_dim and head_dim_v up to 256 in steps of 8, and they are 128 and 100",
       "takes head_dim and head_dim_v up to 256 in steps of 16"},
      {pages, "takes pages of a multiple of 8 keys, and they have 1", "is for up to 48 query rows"},
      {bias, "is for 64 query rows and more, and there are 1", "takes no bias"}};
  for (const auto& [problem, forward_reason, decode_reason] : others) {
    const Plan plan = make_plan("plan", problem, {}, h200);
    EXPECT_EQ(plan.implementation, "sm80_forward");
    ASSERT_EQ(plan.declines.size(), 2u);
    EXPECT_EQ(plan.declines[0].implementation, "sm90_forward");
    EXPECT_EQ(plan.declines[0].reason, forward_reason);
    EXPECT_EQ(plan.declines[1].implementation, "sm90_decode");
    EXPECT_THAT(plan.declines[1].reason, HasSubstr(decode_reason));
  }
}

TEST(implementations, asking_for_cuda_on_a_cpu_names_what_was_asked) {
  const std::string message =
      message_of_not_supported(dense_problem(1, 1, 1, 4, 4, 8), {.backend = Backend::Cuda}, invented_cpu(2));
  EXPECT_THAT(message, HasSubstr("sm90_forward declines (runs on an NVIDIA GPU, and the device is a CPU)"));
  EXPECT_THAT(message, HasSubstr("sm80_forward declines (runs on an NVIDIA GPU, and the device is a CPU)"));
  EXPECT_THAT(message, HasSubstr("cpu_simd declines (backend 'cuda' was asked for)"));
}

TEST(implementations, tensors_in_gpu_memory_are_not_read_by_the_cpu) {
  AttentionProblem problem = dense_problem(1, 1, 1, 4, 4, 8);
  problem.memory = DeviceKind::Cuda;
  EXPECT_THAT(message_of_not_supported(problem, {}, invented_cpu(2)),
              HasSubstr("the tensors are in GPU memory"));
}

}  // namespace
}  // namespace onepass
