// The baseline: right where it says that it takes a problem, and a refusal elsewhere.
#include "tests/cuda/on_gpu.h"
#include "verify/naive_gpu.h"

namespace onepass {
namespace {

TEST(naive, problems_that_are_not_plain_and_dense_are_refused) {
  for (const char* text :
       {"bf16_b1_hq1_sq8_d64_packed", "bf16_b1_hq1_sq8_d64_softcap20", "f32_b1_hq1_sq8_d64",
        "bf16_b1_hq1_sq8_sk32_d64_page16", "bf16_b1_hq1_sq8_d64_sink"}) {
    const verify::CaseShapes shapes = verify::case_shapes(parse_case(text));
    const Plan planned = plan(shapes.args, shapes.options, this_cpu());
    EXPECT_THROW(verify::NaiveGpuCall::require_support("bench", *planned.problem), NotSupported) << text;
  }
}

using gpu_naive = OnGpu;

TEST_F(gpu_naive, masks_and_head_groups_agree_with_float64) {
  for (const char* text :
       {"bf16_b2_hq4_hk2_sq70_sk130_d40_causal", "f16_b1_hq3_hk1_sq129_sk65_d64_dv96_causal",
        "bf16_b1_hq2_sq100_d128_wl20_wr5", "f16_b1_hq1_sq1_sk300_d64", "bf16_b1_hq2_sq65_d72"}) {
    verify::CaseTensors tensors = verify::make_tensors(parse_case(text));
    const verify::GpuCall gpu("bench", tensors.args, tensors.options);
    const verify::NaiveGpuCall naive("bench", gpu.plan());
    naive.run(gpu.args());
    EXPECT_EQ(gpu.copy_back(), std::nullopt);
    EXPECT_EQ(tensors.damage(), std::nullopt);
    tensors.args.softmax_lse = {};  // it computes none
    const verify::CheckReport report = verify::check_result(tensors.args, tensors.options);
    EXPECT_TRUE(report.passed) << text << ": " << report.text();
  }
}

}  // namespace
}  // namespace onepass
