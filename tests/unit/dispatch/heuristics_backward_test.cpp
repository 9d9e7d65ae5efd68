// Plans of backward calls: who takes them, with which tiles and how much workspace.
#include <gmock/gmock.h>

#include <algorithm>

#include "dispatch/heuristics_backward.h"
#include "dispatch/heuristics_sm80_backward.h"
#include "dispatch/implementations.h"
#include "plan/planned_kernel.h"
#include "store/kernel_resources.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::bf16_problem;
using testing::invented_cpu;

AttentionProblem backward_problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_k,
                                  std::int64_t seqlen, std::int64_t head_dim) {
  AttentionProblem p = bf16_problem(batch, heads_q, heads_k, seqlen, seqlen, head_dim);
  p.gradient = GradientProblem{};
  p.gradient->dout = p.gradient->dq = p.q;
  p.gradient->dk = p.gradient->dv = p.k;
  return p;
}

Plan gpu_plan(const AttentionProblem& problem, const char* device) {
  return make_plan("plan", problem, {.backend = Backend::Cuda}, *find_device(device));
}

std::string step_of(const Plan& plan, KernelFamily family) {
  for (const PlanStep& step : plan.steps) {
    if (step.gpu_kernel->spec.family == family) return step.kernel;
  }
  return "none";
}

TEST(heuristics_backward, a_cpu_takes_simd_unless_asked_for_the_reference) {
  const AttentionProblem problem = backward_problem(1, 2, 2, 64, 64);
  EXPECT_EQ(make_plan("plan", problem, {}, invented_cpu(2)).implementation, "cpu_simd");
  EXPECT_EQ(make_plan("plan", problem, {.backend = Backend::Reference}, invented_cpu(2)).implementation,
            "cpu_reference");
}

TEST(heuristics_backward, heads_enough_for_the_threads_are_items_of_five_products) {
  const CpuBackwardConfig many = choose_cpu_backward(backward_problem(4, 8, 8, 512, 64), invented_cpu(4), 0);
  EXPECT_TRUE(many.joint);
  EXPECT_EQ(many.num_items, 32);
  EXPECT_EQ(many.tile_m, 512);
  const CpuBackwardConfig few = choose_cpu_backward(backward_problem(1, 2, 1, 512, 64), invented_cpu(4), 0);
  EXPECT_FALSE(few.joint);
  EXPECT_EQ(few.tile_m, 256);
  EXPECT_EQ(few.num_items, 512 / few.tile_n + 1024 / 256);
  EXPECT_TRUE(choose_cpu_backward(backward_problem(1, 2, 1, 512, 64), invented_cpu(4), 1).joint);
}

TEST(heuristics_backward, heads_are_items_where_few_threads_would_have_none) {
  const auto joint = [](std::int64_t heads, auto change) {
    AttentionProblem problem = backward_problem(1, heads, heads, 512, 64);
    change(problem);
    return choose_cpu_backward(problem, invented_cpu(4), 0).joint;
  };
  const auto as_it_is = [](AttentionProblem&) {};
  EXPECT_FALSE(joint(2, as_it_is));
  EXPECT_TRUE(joint(3, as_it_is));  // 5 x 4 / 3 < 7
  EXPECT_TRUE(joint(4, as_it_is));
  EXPECT_FALSE(joint(5, as_it_is));  // three threads would wait for the fifth
  const auto ragged = [](AttentionProblem& problem) { problem.has_seqused_k = true; };
  EXPECT_FALSE(joint(4, ragged));
  EXPECT_TRUE(joint(8, ragged));
}

TEST(heuristics_backward, workspace_holds_a_float_for_each_row_and_no_scores) {
  const Plan plan = gpu_plan(backward_problem(1, 16, 16, 65536, 128), "a100");
  EXPECT_EQ(plan.workspace_bytes(), 2u * 16 * 65536 * 4);
}

TEST(heuristics_sm80_backward, tiles_by_head_dim) {
  const Plan d64 = gpu_plan(backward_problem(1, 4, 4, 4096, 64), "a100");
  EXPECT_EQ(step_of(d64, KernelFamily::Sm80BackwardKeys),
            "sm80_backward_keys_bf16_d64_v64_m32n128w4c1s2b2_l16s4_sm80");
  EXPECT_EQ(step_of(d64, KernelFamily::Sm80BackwardQueries),
            "sm80_backward_queries_bf16_d64_v64_m128n32w4c1s2b2_l16s4_sm80");
  const Plan d256 = gpu_plan(backward_problem(1, 4, 4, 4096, 256), "l40s");
  EXPECT_EQ(step_of(d256, KernelFamily::Sm80BackwardKeys),
            "sm80_backward_keys_bf16_d256_v256_m32n64w4c1s1b1_l16s4_apart_sm89");
}

TEST(heuristics_sm80_backward, sinks_bias_and_padding_have_kernels_of_their_own) {
  AttentionProblem problem = backward_problem(2, 4, 4, 100, 64);
  EXPECT_EQ(gpu_plan(problem, "a100").steps.size(), 3u);  // prepare, keys, queries
  problem.has_sinks = problem.gradient->has_dsinks = true;
  problem.has_bias = problem.gradient->has_dbias = true;
  problem.gradient->dbias_shape = {1, 4, 100, 130};
  problem.has_seqused_k = true;
  const Plan plan = gpu_plan(problem, "a100");
  EXPECT_EQ(plan.steps.size(), 6u);
  const auto blocks_of = [&](KernelFamily family) {
    for (const PlanStep& step : plan.steps) {
      if (step.gpu_kernel->spec.family == family) return step.num_work_items;
    }
    return std::int64_t{0};
  };
  EXPECT_EQ(blocks_of(KernelFamily::BackwardSinks), 4);
  EXPECT_EQ(blocks_of(KernelFamily::Sm80BackwardBias), 4 * 2 * 5);  // 64 rows x 32 keys
  EXPECT_EQ(blocks_of(KernelFamily::FillGradients), 100);
}

TEST(heuristics_sm80_backward, an_expanded_dout_is_copied_into_the_workspace) {
  AttentionProblem problem = backward_problem(2, 4, 4, 100, 63);
  problem.gradient->dout = {0, 0, 0, 0};
  const Plan plan = gpu_plan(problem, "a100");
  ASSERT_EQ(plan.workspace.size(), 3u);
  EXPECT_EQ(plan.workspace[2].name, kPieceDout);
  EXPECT_EQ(plan.workspace[2].bytes, 2u * 100 * 4 * 64 * 2);
}

TEST(heuristics_sm80_backward, shared_memory_fits_every_device_at_every_head_dim) {
  for (const char* device : {"a100", "h100", "l40s", "rtx4090", "b200"}) {
    const DeviceInfo info = *find_device(device);
    for (std::int64_t head_dim = 1; head_dim <= 576; ++head_dim) {
      for (const bool terms : {false, true}) {
        AttentionProblem problem = backward_problem(1, 2, 2, 256, head_dim);
        problem.head_dim_v = std::min<std::int64_t>(head_dim, 512);
        problem.softcap = terms ? 1 : 0;
        problem.gradient->has_dbias = true;
        problem.gradient->dbias_shape = {1, 1, 256, 256};
        ASSERT_EQ(decline_sm80_backward(problem, info), std::nullopt);
        const Sm80BackwardConfig config = choose_sm80_backward(problem, info);
        for (const KernelSpec& spec : {config.keys, config.queries, config.bias}) {
          ASSERT_LE(static_cast<std::int64_t>(shared_bytes(spec)), info.shared_bytes_per_block)
              << kernel_name(spec);
          ASSERT_EQ(parse_kernel_name(kernel_name(spec)), spec);
        }
      }
    }
  }
}

TEST(heuristics_sm80_backward, says_what_it_does_not_take) {
  const DeviceInfo a100 = *find_device("a100");
  AttentionProblem f32 = backward_problem(1, 2, 2, 64, 64);
  f32.q_dtype = f32.kv_dtype = DType::F32;
  EXPECT_EQ(decline_sm80_backward(f32, a100), "takes f16 and bf16, and q is f32");
  AttentionProblem wide = backward_problem(1, 2, 2, 64, 600);
  EXPECT_EQ(decline_sm80_backward(wide, a100),
            "takes head_dim up to 576 and head_dim_v up to 512, and they are 600 and 600");
  AttentionProblem strided = backward_problem(1, 2, 2, 64, 64);
  strided.gradient->dk.dim = 2;
  EXPECT_EQ(decline_sm80_backward(strided, a100), "needs stride 1 in the last dimension, and dk has 2");
}

}  // namespace
}  // namespace onepass
