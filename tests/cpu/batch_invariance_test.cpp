// batch_invariant: the bits of a row follow from its own sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "problem/case_text.h"
#include "tests/cpu/target.h"
#include "verify/check.h"
#include "verify/one_sequence.h"

namespace onepass {
namespace {

// Lengths on both sides of parts of 2048 keys, and rows on both sides of 16 and 64 packed ones. Lengths below
// the first, which is the bound of the batch, make other plans for sequences alone.
const char* const kCases[] = {
    "b4_hq4_hk2_sq1_sk6000_d32_ragged_invariant",
    "b3_hq4_hk1_sq1_sk4300_d40_dv24_page16_ragged_sink_invariant",
    "b4_hq6_hk2_sq3_sk2200_d16_causal_wl900_ragged_invariant_seed2",
    "b2_hq2_hk1_sq40_sk2300_d16_causal_ragged_invariant_seed3",
    "b3_hq4_hk2_sq70_sk2300_d24_packed_ragged_causal_invariant_seed4",
    "b2_hq2_sq70_sk2100_d16_softcap20_alibib_ragged_invariant",
    "b3_hq71_hk1_sq1_sk4200_d16_ragged_invariant",
    "b2_hq4_hk2_sq2_sk2100_d16_biasbh_invariant",
};

std::vector<char> bytes_of(const Target& target, const ForwardArguments& args, ForwardOptions options,
                           int num_threads, std::int64_t b) {
  options.num_threads = num_threads;
  run_on(target, args, options);
  return verify::bytes_of_sequence(args, b);
}

void check_invariance(const Target& target, const std::string& text) {
  verify::CaseTensors tensors = verify::make_tensors(parse_case(text));
  const ForwardArguments& args = tensors.args;
  const bool packed = args.cu_seqlens_q.present();
  const std::int64_t batch = packed ? args.cu_seqlens_q.shape[0] - 1 : args.q.shape[0];
  run_on(target, args, tensors.options);
  const verify::CheckReport report = verify::check_result(args, tensors.options);
  EXPECT_TRUE(report.passed) << report.text();
  std::vector<std::vector<char>> together;
  for (std::int64_t b = 0; b < batch; ++b) together.push_back(verify::bytes_of_sequence(args, b));

  for (std::int64_t b = 0; b < batch; ++b) {
    SCOPED_TRACE("sequence " + std::to_string(b));
    const std::vector<char>& expected = together[static_cast<std::size_t>(b)];
    const ForwardArguments alone = verify::one_sequence(args, b);
    tensors.poison_outputs();
    EXPECT_EQ(bytes_of(target, alone, tensors.options, 1, 0), expected) << "alone";
    tensors.poison_outputs();
    EXPECT_EQ(bytes_of(target, alone, tensors.options, 7, 0), expected) << "alone, on other threads";
    tensors.poison_outputs();
    EXPECT_EQ(bytes_of(target, args, tensors.options, 3, b), expected) << "on other threads";
    // Dense K and V with strides of less than 0, which tensor maps do not have, are another kernel's.
    if (!packed && (!target.on_gpu() || args.block_table.present())) {
      tensors.poison_outputs();
      const ForwardArguments reversed = verify::in_reverse(args);
      EXPECT_EQ(bytes_of(target, reversed, tensors.options, 2, batch - 1 - b), expected) << "in reverse";
    }
    if (!args.seqused_k.present()) continue;
    auto* used = static_cast<std::int32_t*>(args.seqused_k.data);
    const std::vector<std::int32_t> lengths(used, used + batch);
    for (std::int64_t other = 0; other < batch; ++other) used[other] /= other == b ? 1 : 3;
    tensors.poison_outputs();
    EXPECT_EQ(bytes_of(target, args, tensors.options, 2, b), expected) << "beside shorter ones";
    std::copy(lengths.begin(), lengths.end(), used);
  }
}

TEST(batch_invariance, rows_have_the_same_bits_alone_and_in_any_batch_on_any_threads) {
  for (const Target& target : targets({DType::F32, DType::BF16})) {
    for (const char* shape : kCases) {
      const std::string text = std::string(dtype_name(target.dtype)) + "_" + shape;
      if (target.on_gpu() && !gpu_takes(parse_case(text))) continue;
      SCOPED_TRACE(target.name() + " " + text);
      check_invariance(target, text);
    }
  }
}

TEST(batch_invariance, the_option_is_what_does_it) {
  // Not a rule, but if this fails, the test above no longer tests anything on two threads.
  const Target target{Backend::Cpu, "", DType::F32};
  verify::CaseTensors tensors = verify::make_tensors(parse_case("f32_b4_hq4_hk2_sq1_sk6000_d32_ragged"));
  const std::vector<char> together = bytes_of(target, tensors.args, tensors.options, 2, 0);
  EXPECT_NE(bytes_of(target, verify::one_sequence(tensors.args, 0), tensors.options, 7, 0), together);
}

}  // namespace
}  // namespace onepass
