#include "verify/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "verify/host_tensor.h"

namespace onepass::verify {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

HostTensor rows(const std::vector<std::vector<double>>& values) {  // [1, rows, 1, channels]
  return HostTensor(
      DType::F32,
      {1, static_cast<std::int64_t>(values.size()), 1, static_cast<std::int64_t>(values[0].size())},
      [&](auto idx) { return values[static_cast<std::size_t>(idx[1])][static_cast<std::size_t>(idx[3])]; });
}

Evaluation evaluate_rows(const HostTensor& q, const HostTensor& k, const HostTensor& v,
                         const ForwardOptions& options) {
  ForwardArguments args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  return evaluate(args, options);
}

TEST(oracle, case_a_of_the_specification) {
  const Evaluation e =
      evaluate_rows(rows({{1, 0}, {0, 1}}), rows({{0, 1}, {1, 0}, {2, 1}, {0, 2}}),
                    rows({{1, 0}, {0, 1}, {1, 1}, {2, 0}}), {.softmax_scale = std::numbers::ln2});
  const std::vector<double> out = {7.0 / 8, 3.0 / 4, 4.0 / 3, 1.0 / 3};
  for (std::size_t n = 0; n < out.size(); ++n) {
    EXPECT_NEAR(e.out[n], out[n], 1e-15);
    EXPECT_NEAR(e.plain_out[n], out[n], 1e-6);
  }
  EXPECT_NEAR(e.lse[0], std::log(8.0), 1e-15);
  EXPECT_NEAR(e.lse[1], std::log(9.0), 1e-15);
}

TEST(oracle, every_mask_counts_the_keys_that_its_definition_allows) {
  // q = 0 makes attention uniform: exp(lse) is the number of visible keys.
  const auto counts = [](std::int64_t seqlen_q, std::int64_t seqlen_k, const ForwardOptions& options) {
    const HostTensor q(DType::F32, {1, seqlen_q, 1, 1}, constant(0)),
        k(DType::F32, {1, seqlen_k, 1, 1}, constant(1));
    const Evaluation e = evaluate_rows(q, k, k, options);
    std::vector<double> result;
    for (const double lse : e.lse) result.push_back(std::round(std::exp(lse)));
    return result;
  };
  using Counts = std::vector<double>;
  EXPECT_EQ(counts(2, 5, {}), (Counts{5, 5}));
  EXPECT_EQ(counts(2, 5, {.causal = Causal::BottomRight}), (Counts{4, 5}));
  EXPECT_EQ(counts(5, 2, {.causal = Causal::BottomRight}), (Counts{0, 0, 0, 1, 2}));
  EXPECT_EQ(counts(2, 5, {.causal = Causal::TopLeft}), (Counts{1, 2}));
  EXPECT_EQ(counts(5, 2, {.causal = Causal::TopLeft}), (Counts{1, 2, 2, 2, 2}));
  EXPECT_EQ(counts(6, 6, {.window_left = 2, .window_right = 0}), (Counts{1, 2, 3, 3, 3, 3}));
  EXPECT_EQ(counts(3, 10, {.window_left = 4, .window_right = 0}), (Counts{5, 5, 5}));
  EXPECT_EQ(counts(3, 10, {.window_right = 1}), (Counts{9, 10, 10}));
  EXPECT_EQ(counts(3, 10, {.window_left = 0}), (Counts{3, 2, 1}));
  EXPECT_EQ(counts(3, 10, {.causal = Causal::TopLeft, .window_left = 6}), (Counts{0, 0, 0}));
}

TEST(oracle, rows_without_keys_give_zero_and_minus_infinity) {
  const HostTensor q(DType::F32, {1, 3, 1, 4}, constant(1)), k(DType::F32, {1, 0, 1, 4});
  const Evaluation e = evaluate_rows(q, k, k, {});
  for (const double x : e.out) EXPECT_EQ(x, 0.0);
  for (const double x : e.lse) EXPECT_EQ(x, -kInf);
  for (const auto sees : e.sees_keys) EXPECT_EQ(sees, 0);
}

TEST(oracle, softcap_alibi_bias_and_sink_enter_in_the_order_of_the_formula) {
  // One row at position 1 of two keys; raw scores 8 and 16.
  const HostTensor q = rows({{4}}), k = rows({{2}, {4}}), v = rows({{1}, {2}});
  const HostTensor slopes(DType::F32, {1}, constant(0.5)), sink(DType::F32, {1}, constant(3));
  const HostTensor bias(DType::F32, {1, 1, 1, 2}, [](auto idx) { return idx[3] == 0 ? 0.25 : -1.0; });
  ForwardArguments args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.alibi_slopes = slopes.view();
  args.bias = bias.view();
  args.sinks = sink.view();
  const Evaluation e = evaluate(args, {.softmax_scale = 0.5, .softcap = 2.0});
  const double s0 = 2 * std::tanh(4.0 / 2) - 0.5 * 1 + 0.25, s1 = 2 * std::tanh(8.0 / 2) - 1.0;
  const double l = std::exp(s0) + std::exp(s1) + std::exp(3.0);
  EXPECT_NEAR(e.out[0], (std::exp(s0) + 2 * std::exp(s1)) / l, 1e-14);
  EXPECT_NEAR(e.lse[0], std::log(l), 1e-14);
}

TEST(oracle, pages_are_found_through_the_table_and_entries_past_the_end_are_not_read) {
  const HostTensor q(DType::F32, {1, 1, 1, 1}, constant(0));
  const HostTensor k(DType::F32, {4, 2, 1, 1}, constant(0));
  HostTensor v(DType::F32, {4, 2, 1, 1});
  v.set({3, 0, 0, 0}, 1);
  v.set({3, 1, 0, 0}, 2);
  v.set({1, 0, 0, 0}, 6);
  HostTensor table(DType::I32, {1, 4});
  auto* pages = static_cast<std::int32_t*>(table.view().data);
  pages[0] = 3, pages[1] = 1, pages[2] = -1, pages[3] = 1 << 30;
  const HostTensor used{3};
  ForwardArguments args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.block_table = table.view();
  args.seqused_k = used.view();
  const Evaluation e = evaluate(args, {});
  EXPECT_DOUBLE_EQ(e.out[0], 3.0);
  EXPECT_DOUBLE_EQ(e.lse[0], std::log(3.0));
}

TEST(oracle, plain_evaluation_rounds_scores_and_probabilities_to_the_input_type) {
  // S = 1.00390625 rounds to 1 in bf16 (ties to even); the exact evaluation keeps it.
  const HostTensor q(DType::BF16, {1, 1, 1, 1}, constant(1)),
      v(DType::BF16, {1, 2, 1, 1}, [](auto idx) { return idx[1]; });
  const HostTensor k(DType::BF16, {1, 2, 1, 1}, [](auto idx) { return idx[1] == 0 ? 0.0 : 1.0; });
  const Evaluation e = evaluate_rows(q, k, v, {.softmax_scale = 1.00390625});
  EXPECT_NEAR(e.out[0], 1 / (1 + std::exp(-1.00390625)), 1e-15);
  EXPECT_EQ(e.plain_out[0], 0.73046875f);  // sigmoid(1) = 0.7310586 in bf16
}

TEST(oracle, nan_in_a_visible_key_shows_in_the_rows_that_see_it_and_in_no_other) {
  const HostTensor q(DType::F32, {1, 4, 1, 2}, constant(1));
  HostTensor k(DType::F32, {1, 4, 1, 2}, constant(1)), v(DType::F32, {1, 4, 1, 2}, constant(1));
  k.set({0, 2, 0, 0}, std::numeric_limits<float>::quiet_NaN());
  const Evaluation e = evaluate_rows(q, k, v, {.causal = Causal::BottomRight});
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::isnan(e.out[2 * i]), i >= 2) << i;
    EXPECT_EQ(std::isnan(e.lse[i]), i >= 2) << i;
  }
}

}  // namespace
}  // namespace onepass::verify
