#include "plan/common_kernels.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string>

#include "plan/cuda_plan.h"
#include "plan/make_plan.h"
#include "problem/case_text.h"
#include "problem/validate.h"
#include "verify/case_tensors.h"

namespace onepass {
namespace {

std::set<std::string> machine_code_names() {
  std::set<std::string> names;
  for (const CommonKernel& kernel : common_kernels()) {
    if (kernel.kind == ImageKind::Cubin) names.insert(kernel_name(kernel.spec));
  }
  return names;
}

TEST(common_kernels, are_the_same_every_time_and_each_once) {
  const std::vector<CommonKernel> kernels = common_kernels();
  EXPECT_EQ(kernels, common_kernels());
  std::set<std::pair<std::string, ImageKind>> seen;
  for (const CommonKernel& kernel : kernels) {
    EXPECT_TRUE(seen.emplace(kernel_name(kernel.spec), kernel.kind).second) << kernel_name(kernel.spec);
  }
}

TEST(common_kernels, cover_the_architectures_we_know_and_ptx_for_the_rest) {
  std::set<int> cubin, ptx;
  for (const CommonKernel& kernel : common_kernels()) {
    (kernel.kind == ImageKind::Cubin ? cubin : ptx).insert(kernel.spec.architecture);
    EXPECT_EQ(kernel.spec.load_bytes, 16);
  }
  EXPECT_THAT(cubin, ::testing::ElementsAre(80, 86, 89, 90));
  EXPECT_THAT(ptx, ::testing::ElementsAre(80));
}

TEST(common_kernels, hold_what_plans_of_common_cases_name_on_every_gpu_of_a_known_architecture) {
  const std::set<std::string> names = machine_code_names();
  for (const char* text :
       {"bf16_b1_hq32_hk8_sq4096_d128_causal", "f16_b2_hq16_hk16_sq1024_d64",
        "bf16_b1_hq32_hk8_sq1_sk8192_d128_causal", "bf16_b64_hq32_hk8_sq1_sk2048_d128_causal_page16_ragged",
        "bf16_b4_hq32_hk4_sq512_sk512_d128_causal_packed_ragged", "bf16_b1_hq8_hk4_sq2048_d256_causal",
        "bf16_b1_hq32_hk16_sq2048_d128_causal_softcap50", "bf16_b1_hq128_hk128_sq2048_d192_dv128_causal",
        "bf16_b8_hq128_hk1_sq1_sk4096_d576_dv512_causal_page64", "bf16_b2_hq16_hk16_sq512_d64_causal",
        "bf16_b8_hq32_hk8_sq512_sk4096_d128_causal_packedq_page64_ragged",
        "f16_b8_hq16_hk16_sq256_sk1024_d64_causal_packedq_page16_ragged",
        "bf16_b1_hq16_hk2_sq8192_d128_wl1024_wr0", "bf16_b8_hq16_hk16_sq1024_d64_wl256_wr0"}) {
    const verify::CaseShapes shapes = verify::case_shapes(parse_case(text));
    for (const char* device : {"a100", "h100", "h200", "l40s", "rtx4090"}) {
      const Plan plan = make_plan("test", validate_problem("test", shapes.args, shapes.options),
                                  {.backend = Backend::Cuda}, *find_device(device));
      for (const PlanStep& step : plan.steps) {
        EXPECT_EQ(names.count(step.kernel), 1u) << text << " on " << device << ": " << step.kernel;
      }
    }
  }
}

TEST(common_kernels, hold_hopper_kernels_of_usual_head_dims_dtypes_and_masks) {
  const std::set<std::string> names = machine_code_names();
  for (const char* text : {"bf16_b2_hq16_hk16_sq4096_d64",
                           "bf16_b2_hq16_hk16_sq4096_d64_causal",
                           "bf16_b2_hq16_hk16_sq4096_d64_wl1024_wr0",
                           "bf16_b2_hq16_hk16_sq4096_d96",
                           "bf16_b2_hq16_hk16_sq4096_d96_causal",
                           "bf16_b2_hq16_hk16_sq512_d96",
                           "bf16_b2_hq16_hk16_sq1024_d96_causal",
                           "bf16_b2_hq16_hk16_sq1024_d128_wl256_wr0",
                           "bf16_b2_hq16_hk16_sq512_d128",
                           "f16_b2_hq16_hk16_sq512_d128",
                           "bf16_b2_hq16_hk16_sq4096_d128",
                           "bf16_b2_hq16_hk16_sq4096_d128_causal",
                           "bf16_b2_hq16_hk16_sq4096_d128_wl1024_wr0",
                           "bf16_b2_hq16_hk16_sq4096_d192_dv128",
                           "bf16_b2_hq16_hk16_sq4096_d192_dv128_causal",
                           "bf16_b2_hq16_hk16_sq4096_d256",
                           "bf16_b2_hq16_hk16_sq4096_d256_causal",
                           "f16_b2_hq16_hk16_sq4096_d64",
                           "f16_b2_hq16_hk16_sq4096_d64_causal",
                           "f16_b2_hq16_hk16_sq4096_d128",
                           "f16_b2_hq16_hk16_sq4096_d128_causal"}) {
    const verify::CaseShapes shapes = verify::case_shapes(parse_case(text));
    const Plan plan = make_plan("test", validate_problem("test", shapes.args, shapes.options),
                                {.backend = Backend::Cuda}, *find_device("h200"));
    EXPECT_EQ(plan.implementation, "sm90_forward") << text;
    ASSERT_EQ(plan.steps.size(), 1u);
    EXPECT_TRUE(names.contains(plan.steps[0].kernel)) << text << ": " << plan.steps[0].kernel;
  }
}

TEST(common_kernels, hold_hopper_kernels_of_decode) {
  const std::set<std::string> names = machine_code_names();
  for (const char* text :
       {"bf16_b1_hq32_hk8_sq1_sk8192_d128", "bf16_b8_hq32_hk8_sq1_sk4096_d128",
        "bf16_b100_hq32_hk8_sq1_sk8192_d128_page64_ragged", "bf16_b64_hq32_hk8_sq1_sk8192_d128",
        "f16_b1_hq32_hk4_sq1_sk8192_d64", "f16_b64_hq28_hk4_sq1_sk8192_d128_page64_ragged",
        "bf16_b1_hq32_hk8_sq1_sk8192_d128_page16_ragged",
        "bf16_b1_hq32_hk8_sq4_sk8192_d128_page16_causal_ragged",
        "bf16_b64_hq32_hk2_sq1_sk8192_d128_page16_ragged", "bf16_b1_hq16_hk8_sq1_sk8192_d256_page16_ragged",
        "bf16_b64_hq16_hk8_sq1_sk8192_d256", "bf16_b64_hq32_hk8_sq1_sk8192_d128_page16_softcap30_ragged",
        "bf16_b1_hq32_hk8_sq1_sk8192_d128_page1_ragged", "bf16_b100_hq32_hk8_sq1_sk8192_d128_page1_ragged"}) {
    const verify::CaseShapes shapes = verify::case_shapes(parse_case(text));
    const Plan plan = make_plan("test", validate_problem("test", shapes.args, shapes.options),
                                {.backend = Backend::Cuda}, *find_device("h200"));
    EXPECT_EQ(plan.implementation, "sm90_decode") << text;
    for (const PlanStep& step : plan.steps)
      EXPECT_TRUE(names.contains(step.kernel)) << text << ": " << step.kernel;
  }
}

TEST(common_kernels, on_other_architectures_are_the_same_for_every_mask) {
  for (const std::string& name : machine_code_names()) {
    if (!name.starts_with("sm90_")) continue;
    EXPECT_TRUE(name.ends_with("_sm90")) << name;
  }
}

TEST(common_kernels, hold_the_merge_of_states_and_append_for_every_known_architecture) {
  const std::set<std::string> names = machine_code_names();
  for (const int architecture : {80, 86, 89, 90}) {
    EXPECT_TRUE(names.contains(kernel_name(merge_states_kernel(architecture)))) << architecture;
    for (const DType dtype : {DType::F16, DType::BF16}) {
      EXPECT_TRUE(names.contains(kernel_name(append_kv_kernel(architecture, dtype, dtype, 16))))
          << architecture;
    }
  }
}

TEST(common_kernels, have_names_that_give_their_specs_back) {
  for (const CommonKernel& kernel : common_kernels()) {
    EXPECT_EQ(parse_kernel_name(kernel_name(kernel.spec)), kernel.spec);
  }
}

}  // namespace
}  // namespace onepass
