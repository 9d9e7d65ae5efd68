#include "verify/case_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/float_types.h"
#include "verify/oracle.h"

namespace onepass::verify {
namespace {

/// The inputs of every variant below, evaluated through the views: equal numbers mean equal logical tensors.
Evaluation evaluate_case(const std::string& text) {
  const CaseTensors t = make_tensors(parse_case(text));
  return evaluate(t.args, t.options);
}

TEST(case_tensors, layouts_and_memory_orders_hold_the_same_numbers) {
  const std::string base = "bf16_b3_hq4_hk2_sq5_sk37_d24_dv16_causal_ragged_seed3";
  const Evaluation dense = evaluate_case(base);
  for (const char* variant : {"bhsd", "qkvpacked", "dimstride2", "reversed", "nopoison", "page1", "page4",
                              "page64", "page4_qkvpacked", "page4_bhsd", "page5_reversed", "packedk",
                              "packedk_gap", "maxlen", "packedk_qkvpacked_gap"}) {
    const Evaluation other = evaluate_case(base + "_" + variant);
    EXPECT_EQ(dense.out, other.out) << variant;
    EXPECT_EQ(dense.lse, other.lse) << variant;
  }
  const Evaluation packed = evaluate_case(base + "_packed"),
                   gaps = evaluate_case(base + "_packed_gap_qkvpacked");
  std::vector<double> packed_rows, gap_rows, dense_rows;
  const auto owned_rows = [](const Evaluation& e) {
    std::vector<double> values;
    const auto width = static_cast<std::size_t>(e.num_heads * e.head_dim_v);
    for (std::size_t row = 0; row < e.owners.size(); ++row) {
      if (e.owners[row].batch < 0) continue;
      values.insert(values.end(), e.out.begin() + static_cast<std::ptrdiff_t>(row * width),
                    e.out.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
    }
    return values;
  };
  EXPECT_EQ(owned_rows(packed), owned_rows(dense));
  EXPECT_EQ(owned_rows(gaps), owned_rows(dense));
}

TEST(case_tensors, no_poison_reaches_the_formula_for_any_mask) {
  for (const char* mask :
       {"", "_causal", "_causaltl", "_wl3", "_wr2", "_wl5_wr1", "_causal_wl4", "_causaltl_wl9_wr9"}) {
    for (const char* lengths : {"_sq9_sk9", "_sq3_sk20", "_sq20_sk3", "_sq1_sk33", "_sq8_sk0", "_sq0_sk8"}) {
      const std::string text = std::string("f16_b2_hq2_d8") + lengths + mask +
                               "_biasb1_alibi_sink_descalebh_kvf8e4m3_packedq_page4_ragged_gap_seed5";
      for (const double x : evaluate_case(text).out) ASSERT_TRUE(std::isfinite(x)) << text;
    }
  }
}

TEST(case_tensors, poison_is_everywhere_but_where_the_formula_reads) {
  // Setting anything NaN to a number must not matter; here: every NaN of q, k, v and bias is indeed there.
  const CaseTensors t = make_tensors(parse_case("f32_b1_hq1_sq4_sk9_d2_causaltl_bias_seed2"));
  const auto value = [](const TensorView& view, std::int64_t n) {
    return static_cast<const float*>(view.data)[n];
  };
  for (std::int64_t j = 0; j < 9; ++j) {
    for (std::int64_t d = 0; d < 2; ++d) {
      EXPECT_EQ(std::isnan(value(t.args.k, 2 * j + d)), j >= 4) << j;
      EXPECT_EQ(std::isnan(value(t.args.v, 2 * j + d)), j >= 4) << j;
    }
    for (std::int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(std::isnan(value(t.args.bias, 9 * i + j)), j > i) << i << " " << j;
  }
  const CaseTensors late = make_tensors(parse_case("f32_b1_hq1_sq5_sk2_d1_causal"));
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(std::isnan(value(late.args.q, i)), i < 3) << i;
}

TEST(case_tensors, values_have_the_mean_and_deviation_asked_for) {
  const CaseTensors t = make_tensors(parse_case("f32_b2_hq4_sq256_d64_mean-2_meanv3_seed9"));
  const auto statistics = [](const TensorView& view) {
    double sum = 0, squares = 0;
    for (std::int64_t n = 0; n < view.num_elements(); ++n) {
      const double x = static_cast<const float*>(view.data)[n];
      sum += x;
      squares += x * x;
    }
    const double mean = sum / static_cast<double>(view.num_elements());
    return std::pair{mean, squares / static_cast<double>(view.num_elements()) - mean * mean};
  };
  for (const TensorView& view : {t.args.q, t.args.k}) {
    EXPECT_NEAR(statistics(view).first, -2, 0.02);
    EXPECT_NEAR(statistics(view).second, 1, 0.02);
  }
  EXPECT_NEAR(statistics(t.args.v).first, 3, 0.02);
}

TEST(case_tensors, seeds_give_other_numbers_and_one_seed_gives_them_again) {
  const auto first = evaluate_case("f32_b1_hq2_sq8_d4_seed1").out;
  EXPECT_EQ(first, evaluate_case("f32_b1_hq2_sq8_d4_seed1").out);
  EXPECT_NE(first, evaluate_case("f32_b1_hq2_sq8_d4_seed2").out);
}

TEST(case_tensors, damage_names_what_was_written) {
  CaseTensors t = make_tensors(parse_case("f32_b1_hq1_sq4_d4_dimstride2"));
  EXPECT_EQ(t.damage(), std::nullopt);
  auto* out = static_cast<float*>(t.args.out.data);
  out[2] = 1.0f;  // element 1
  EXPECT_EQ(t.damage(), std::nullopt);
  out[3] = 1.0f;  // between elements 1 and 2
  EXPECT_EQ(t.damage(), "memory between the elements of out was written");
  t.poison_outputs();
  EXPECT_EQ(t.damage(), std::nullopt);
  out[-1] = 0.0f;
  EXPECT_EQ(t.damage(), "memory beside out was written");

  CaseTensors inputs = make_tensors(parse_case("f32_b1_hq1_sq4_d4"));
  static_cast<float*>(inputs.args.v.data)[3] += 1.0f;
  EXPECT_EQ(inputs.damage(), "input v was written");
  CaseTensors lse = make_tensors(parse_case("f32_b1_hq1_sq4_d4"));
  static_cast<float*>(lse.args.softmax_lse.data)[4] = 0.0f;
  EXPECT_EQ(lse.damage(), "memory beside softmax_lse was written");
}

TEST(case_tensors, shapes_without_memory_are_those_of_the_tensors) {
  for (const char* text : {"bf16_b3_hq4_hk2_sq5_sk37_d24_ragged_packed_gap",
                           "f16_b2_hq2_sq3_d8_page16_qkvpacked_sink", "f32_b2_hq2_sq3_d8_reversed_bias"}) {
    const CaseTensors t = make_tensors(parse_case(text));
    const CaseShapes shapes = case_shapes(parse_case(text));
    for (const auto& [real, shape] : {std::pair{t.args.q, shapes.args.q},
                                      {t.args.k, shapes.args.k},
                                      {t.args.v, shapes.args.v},
                                      {t.args.out, shapes.args.out},
                                      {t.args.softmax_lse, shapes.args.softmax_lse},
                                      {t.args.bias, shapes.args.bias},
                                      {t.args.block_table, shapes.args.block_table}}) {
      EXPECT_EQ(real.shape, shape.shape) << text;
      EXPECT_EQ(real.strides, shape.strides) << text;
      EXPECT_EQ(shape.data, nullptr) << text;
    }
  }
  EXPECT_EQ(case_shapes(parse_case("bf16_b1_hq16_sq1048576_d128")).args.q.shape[1], 1048576);
}

TEST(case_tensors, more_memory_than_the_machine_has_is_refused) {
  try {
    make_tensors(parse_case("f32_b1_hq16384_sq1048576_d128"));
    FAIL() << "no error";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("GB of this machine"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace onepass::verify
