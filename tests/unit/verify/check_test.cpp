// The judge must find faults: each test damages a right answer in one way and reads the verdict.
#include "verify/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/float_types.h"
#include "verify/case_tensors.h"
#include "verify/oracle.h"

namespace onepass::verify {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A case whose outputs hold the float64 answer, rounded.
CaseTensors answered(const std::string& text) {
  CaseTensors t = make_tensors(parse_case(text));
  const Evaluation e = evaluate(t.args, t.options);
  for (std::size_t n = 0; n < e.out.size(); ++n) {  // row-major: the same order
    store_float(t.args.out.data, t.args.out.dtype, static_cast<std::int64_t>(n),
                static_cast<float>(e.out[n]));
  }
  const std::int64_t seqlen = t.args.q.rank == 4 ? t.args.q.shape[1] : e.num_rows;
  for (std::int64_t row = 0; row < e.num_rows; ++row) {
    for (std::int64_t h = 0; h < e.num_heads; ++h) {
      static_cast<float*>(t.args.softmax_lse.data)[(row / seqlen * e.num_heads + h) * seqlen + row % seqlen] =
          static_cast<float>(e.lse[static_cast<std::size_t>(row * e.num_heads + h)]);
    }
  }
  return t;
}

CheckReport judge(const CaseTensors& t) { return check_result(t.args, t.options); }

void set_out(CaseTensors& t, std::int64_t n, float x) {
  store_float(t.args.out.data, t.args.out.dtype, n, x);
}
float get_out(const CaseTensors& t, std::int64_t n) {
  return load_float(t.args.out.data, t.args.out.dtype, n);
}

constexpr const char* kDense = "f16_b2_hq3_hk1_sq4_sk7_d8_causal";

TEST(check, the_rounded_float64_answer_passes_in_every_type_and_layout) {
  for (const char* text :
       {kDense, "f32_b2_hq2_sq9_d5_wl2_sink", "bf16_b3_hq4_hk2_sq6_d16_packed_ragged_gap",
        "f32_b3_hq1_sq6_sk2_d4_causal_ragged", "bf16_b2_hq2_sq3_sk40_d8_page16_kvf8e5m2_descaleh"}) {
    const CheckReport report = judge(answered(text));
    EXPECT_TRUE(report.passed) << text << "\n" << report.text();
    EXPECT_GT(report.num_out, 0);
    EXPECT_GT(report.num_lse, 0);
  }
}

TEST(check, an_error_past_twice_that_of_the_plain_evaluation_fails_with_the_place) {
  CaseTensors t = answered(kDense);
  const double bound = judge(t).out.bound;
  // sequence 1, row 2, head 1, channel 5 of [2, 4, 3, 8]
  const std::int64_t n = ((1 * 4 + 2) * 3 + 1) * 8 + 5;
  const float right = get_out(t, n);
  set_out(t, n, right + static_cast<float>(1.5 * bound));
  const CheckReport report = judge(t);
  EXPECT_FALSE(report.passed);
  EXPECT_THAT(report.failure,
              AllOf(StartsWith("out is "), HasSubstr("at sequence 1 row 2 head 1 channel 5, but ")));
  EXPECT_GT(report.out.error, report.out.bound);
  EXPECT_NEAR(report.out.bound, 2 * report.plain_error + 1e-5, 1e-12);
}

TEST(check, many_small_errors_fail_by_the_frobenius_bound) {
  CaseTensors t = answered("f32_b1_hq1_sq16_d16_meanv1");
  for (std::int64_t n = 0; n < 16 * 16; ++n) set_out(t, n, get_out(t, n) + (n % 2 == 0 ? 9e-6f : -9e-6f));
  EXPECT_TRUE(judge(t).passed) << judge(t).text();
  // Small outputs: the same absolute error is a large relative one, although the maximum allows it.
  CaseTensors small = answered("f32_b1_hq1_sq16_sk16_d16_mean0_meanv0_scale0");
  for (std::int64_t n = 0; n < 16 * 16; ++n)
    set_out(small, n, get_out(small, n) + (n % 2 == 0 ? 9e-6f : -9e-6f));
  const CheckReport report = judge(small);
  EXPECT_FALSE(report.passed);
  EXPECT_THAT(report.failure, HasSubstr("Frobenius"));
  EXPECT_EQ(report.frobenius_bound, 1e-5);
}

TEST(check, lse_has_its_own_bound) {
  CaseTensors t = answered(kDense);
  auto* lse = static_cast<float*>(t.args.softmax_lse.data);
  lse[9] += 5e-4f;
  EXPECT_TRUE(judge(t).passed);
  lse[9] += 1e-3f;
  CheckReport report = judge(t);
  EXPECT_FALSE(report.passed);
  EXPECT_THAT(report.failure, AllOf(StartsWith("softmax_lse is "), HasSubstr("sequence 0 row 1 head 2")));

  CaseTensors f32 = answered("f32_b1_hq1_sq4_d8");
  static_cast<float*>(f32.args.softmax_lse.data)[0] += 5e-4f;
  EXPECT_FALSE(judge(f32).passed);
}

TEST(check, places_of_nan_and_infinity_come_first) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const auto& [wrong, text] :
       {std::pair{nan, "nan"}, {std::copysign(nan, -1.0f), "nan"}, {inf, "inf"}, {-inf, "-inf"}}) {
    CaseTensors t = answered(kDense);
    set_out(t, 17, wrong);
    const CheckReport report = judge(t);
    EXPECT_FALSE(report.passed);
    EXPECT_THAT(report.failure, AllOf(StartsWith(std::string("out is ") + text + " at "),
                                      HasSubstr("row 0 head 2 channel 1"), HasSubstr("in float64")));
    CaseTensors l = answered(kDense);
    static_cast<float*>(l.args.softmax_lse.data)[3] = wrong;
    EXPECT_FALSE(judge(l).passed);
  }
}

TEST(check, a_nan_that_the_formula_gives_must_be_there) {
  CaseTensors t = make_tensors(parse_case("f32_b1_hq1_sq2_d2"));
  static_cast<float*>(t.args.v.data)[1] = std::numeric_limits<float>::quiet_NaN();
  const Evaluation e = evaluate(t.args, t.options);
  for (std::int64_t n = 0; n < 4; ++n) set_out(t, n, static_cast<float>(e.out[static_cast<std::size_t>(n)]));
  for (std::int64_t i = 0; i < 2; ++i) {
    static_cast<float*>(t.args.softmax_lse.data)[i] = static_cast<float>(e.lse[static_cast<std::size_t>(i)]);
  }
  EXPECT_TRUE(judge(t).passed);
  set_out(t, 1, 0.5f);
  EXPECT_FALSE(judge(t).passed);
}

TEST(check, rows_without_keys_and_rows_of_no_sequence_must_be_exactly_zero) {
  CaseTensors t = answered("bf16_b1_hq1_sq5_sk2_d4_causal");
  set_out(t, 0, 1e-6f);
  EXPECT_THAT(judge(t).failure, HasSubstr("exactly 0 is required"));

  const char* gaps = "bf16_b4_hq1_sq5_d4_packed_gap_seed1";
  CaseTensors padded = answered(gaps);
  const Evaluation e = evaluate(padded.args, padded.options);
  std::int64_t padding = -1;
  for (std::int64_t row = 0; row < e.num_rows; ++row) {
    if (e.owners[static_cast<std::size_t>(row)].batch < 0) padding = row;
  }
  ASSERT_GE(padding, 0);
  EXPECT_TRUE(judge(padded).passed);
  set_out(padded, padding * 4, 1e-6f);
  EXPECT_THAT(judge(padded).failure, HasSubstr("of no sequence"));
  CaseTensors lse = answered(gaps);
  static_cast<float*>(lse.args.softmax_lse.data)[padding] = -1e30f;
  EXPECT_THAT(judge(lse).failure, HasSubstr("of no sequence"));
}

TEST(check, the_repeat_line_names_case_seed_backend_threads_and_instruction_set) {
  const Case c = parse_case("f32_b1_hq1_sq4_d8_causal_seed77");
  EXPECT_EQ(repeat_line(c, {}), "onepass check f32_b1_hq1_hk1_sq4_sk4_d8_causal_seed77");
  EXPECT_EQ(repeat_line(c, {Backend::Cpu, 3, "AVX2"}),
            "onepass check f32_b1_hq1_hk1_sq4_sk4_d8_causal_seed77 --backend cpu --threads 3 "
            "--instruction-set AVX2");
}

TEST(check, a_case_runs_on_the_reference_backend_and_reports_numbers) {
  const CheckReport report = check_case(parse_case(kDense), {Backend::Reference, 1, ""});
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(report.num_out, 2 * 4 * 3 * 8);
  EXPECT_EQ(report.num_lse, 2 * 4 * 3);
  EXPECT_THAT(report.text(),
              AllOf(StartsWith("passed\n"), HasSubstr("repeat with: onepass check f16_b2_hq3_hk1")));
}

}  // namespace
}  // namespace onepass::verify
