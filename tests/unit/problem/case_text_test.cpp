#include "problem/case_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace onepass {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string message_of(std::string_view text) {
  try {
    parse_case(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(case_text, shapes_and_mask_of_the_documented_example) {
  const Case c = parse_case("bf16_b2_hq32_hk4_sq512_sk640_d128_causal");
  EXPECT_EQ(c.dtype, DType::BF16);
  EXPECT_EQ(c.kv_dtype, DType::BF16);
  EXPECT_EQ(c.batch, 2);
  EXPECT_EQ(c.num_heads_q, 32);
  EXPECT_EQ(c.num_heads_k, 4);
  EXPECT_EQ(c.seqlen_q, 512);
  EXPECT_EQ(c.seqlen_k, 640);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.head_dim_v, 128);
  EXPECT_EQ(c.causal, Causal::BottomRight);
  EXPECT_EQ(c.window_left, -1);
  EXPECT_FALSE(c.softmax_scale.has_value());
  EXPECT_TRUE(c.has_lse);
  EXPECT_TRUE(c.poison);
}

TEST(case_text, key_heads_key_rows_and_value_dim_default_to_the_queries) {
  const Case c = parse_case("f32_b1_hq6_sq7_d40");
  EXPECT_EQ(c.num_heads_k, 6);
  EXPECT_EQ(c.seqlen_k, 7);
  EXPECT_EQ(c.head_dim_v, 40);
}

TEST(case_text, tokens_of_a_backward_call) {
  const Case c = parse_case("f32_b1_hq2_sq7_d40_bwd_dlse_doutother");
  EXPECT_TRUE(c.backward && c.has_dlse);
  EXPECT_EQ(c.dout, DoutOrder::Other);
  EXPECT_EQ(parse_case(to_string(c)), c);
  EXPECT_EQ(parse_case("f32_b1_hq2_sq7_d40_bwd_doutone").dout, DoutOrder::One);
  EXPECT_THAT(message_of("f32_b1_hq2_sq7_d40_dlse"), HasSubstr("without 'bwd'"));
  EXPECT_THAT(message_of("f32_b1_hq2_sq7_d40_bwd_nolse"), HasSubstr("'nolse' is given with 'bwd'"));
}

TEST(case_text, every_token_sets_its_value) {
  const Case c = parse_case(
      "f16_b3_hq8_hk2_sq5_sk9_d64_dv32_causaltl_wl3_wr0_scale-0.25_softcap30.5_alibib_bias1hf32_biasinf_sink_"
      "kvf8e4m3_descalebh_packedq_page16_ragged_gap_maxlen_bhsd_mean-1.5_meanv3_seed42_split3_nolse_"
      "nopoison");
  EXPECT_EQ(c.head_dim_v, 32);
  EXPECT_EQ(c.causal, Causal::TopLeft);
  EXPECT_EQ(c.window_left, 3);
  EXPECT_EQ(c.window_right, 0);
  EXPECT_EQ(c.softmax_scale, -0.25);
  EXPECT_EQ(c.softcap, 30.5);
  EXPECT_EQ(c.alibi, PerHead::BatchHeads);
  EXPECT_TRUE(c.has_bias && c.bias_per_head && c.bias_has_inf);
  EXPECT_FALSE(c.bias_per_batch);
  EXPECT_EQ(c.bias_dtype, DType::F32);
  EXPECT_TRUE(c.has_sinks);
  EXPECT_EQ(c.kv_dtype, DType::F8E4M3);
  EXPECT_EQ(c.descale, PerHead::BatchHeads);
  EXPECT_TRUE(c.packed_q);
  EXPECT_FALSE(c.packed_k);
  EXPECT_EQ(c.page_size, 16);
  EXPECT_TRUE(c.ragged && c.gaps && c.gives_max_seqlen);
  EXPECT_EQ(c.order, MemoryOrder::Bhsd);
  EXPECT_EQ(c.mean, -1.5);
  EXPECT_EQ(c.mean_v, 3);
  EXPECT_EQ(c.seed, 42);
  EXPECT_EQ(c.num_splits, 3);
  EXPECT_FALSE(c.has_lse);
  EXPECT_FALSE(c.poison);
}

TEST(case_text, factors_of_pages_need_pages_of_8_bits) {
  const Case c = parse_case("bf16_b2_hq4_sq1_sk9_d64_kvi8_descaleph_page4");
  EXPECT_EQ(c.descale, PerHead::PageHeads);
  EXPECT_EQ(parse_case(to_string(c)), c);
  EXPECT_EQ(parse_case("bf16_b2_hq4_sq1_sk9_d64_kvi8_descalep_page4").descale, PerHead::Pages);
  EXPECT_THAT(message_of("bf16_b2_hq4_sq1_d64_kvi8_descalep"), HasSubstr("without 8-bit pages"));
  EXPECT_THAT(message_of("bf16_b2_hq4_sq1_d64_descaleph_page4"), HasSubstr("without 8-bit pages"));
}

TEST(case_text, order_of_tokens_after_the_dtype_is_free_and_the_printed_order_is_canonical) {
  EXPECT_EQ(to_string(parse_case("bf16_causal_bias_d8_sq4_hq2_b1")),
            "bf16_b1_hq2_hk2_sq4_sk4_d8_causal_biasbh");
  EXPECT_EQ(to_string(parse_case("f32_b1_hq1_sq1_d1_biasb1f32_scale1e-3")),
            "f32_b1_hq1_hk1_sq1_sk1_d1_scale0.001_biasb1");
}

TEST(case_text, printing_and_parsing_random_cases_gives_them_back) {
  const std::vector<std::vector<std::string>> groups = {
      {"", "causal", "causaltl"},
      {"", "wl0", "wl17"},
      {"", "wr0", "wr1099511627776"},
      {"", "scale0", "scale-0", "scale0.08838834764831845", "scale-1e+30", "scale1e-300"},
      {"", "softcap1e-30", "softcap50"},
      {"", "alibi", "alibib"},
      {"", "bias", "bias11", "biasb1f32", "bias1h", "biasbhf32", "bias1h_biasinf"},
      {"", "sink"},
      {"", "kvf8e4m3", "kvf8e5m2", "kvi8"},
      {"", "descale1", "descaleh", "descalebh"},
      {"", "packed", "packedq", "packedk", "page1", "page256", "packedq_page3", "packed_gap",
       "packedq_page8_gap"},
      {"", "ragged"},
      {"", "maxlen"},
      {"", "bhsd", "qkvpacked", "dimstride2", "broadcastk", "reversed"},
      {"", "mean0", "mean-10000", "mean0.1", "meanv2", "mean1_meanv-1"},
      {"", "seed1", "seed9223372036854775807"},
      {"", "split1", "split1024", "invariant"},
      {"", "nolse"},
      {"", "nopoison"}};
  std::mt19937_64 random(7);
  for (int n = 0; n < 5000; ++n) {
    std::string text = std::vector<std::string>{"f32", "f16", "bf16"}[random() % 3];
    text +=
        fmt::format("_b{}_hq{}_hk{}_sq{}_sk{}_d{}_dv{}", random() % 9, 1 + random() % 99, 1 + random() % 99,
                    random() % 999, random() % 999, 1 + random() % 576, 1 + random() % 576);
    for (const auto& group : groups) {
      const std::string& token = group[random() % group.size()];
      if (!token.empty()) text += "_" + token;
    }
    SCOPED_TRACE(text);
    const Case c = parse_case(text);
    const std::string printed = to_string(c);
    ASSERT_EQ(parse_case(printed), c);
    ASSERT_EQ(to_string(parse_case(printed)), printed);
  }
}

TEST(case_text, an_error_has_three_lines_with_token_and_what_is_allowed) {
  EXPECT_EQ(message_of("f32_b1_hq0_sq1_d1"),
            "case text: token 'hq0' does not give a number of query heads in range.\n"
            "  Allowed: hq<N> with N from 1 to 16384.\n"
            "  Fix: correct the number after 'hq'.");
}

TEST(case_text, unknown_tokens_list_the_grammar) {
  EXPECT_THAT(
      message_of("f32_b1_hq1_sq1_d1_cuasal"),
      AllOf(StartsWith("case text: token 'cuasal' is unknown"), HasSubstr("causaltl"), HasSubstr("page<N>")));
}

TEST(case_text, the_first_token_must_be_a_dtype) {
  for (const char* text : {"", "_", "b1_hq1_sq1_d1", "f64_b1_hq1_sq1_d1", "i32_b1", "f8e4m3_b1_hq1_sq1_d1"}) {
    EXPECT_THAT(message_of(text), AllOf(HasSubstr("no dtype"), HasSubstr("f32, f16 or bf16"))) << text;
  }
}

TEST(case_text, a_missing_required_token_is_named) {
  EXPECT_THAT(message_of("f32_hq1_sq1_d1"), HasSubstr("no token b<N>"));
  EXPECT_THAT(message_of("f32_b1_sq1_d1"), HasSubstr("no token hq<N>"));
  EXPECT_THAT(message_of("f32_b1_hq1_d1"), HasSubstr("no token sq<N>"));
  EXPECT_THAT(message_of("f32_b1_hq1_sq1"), HasSubstr("no token d<N>"));
  EXPECT_THAT(message_of("f32"), HasSubstr("no token b<N>"));
}

TEST(case_text, a_token_given_twice_or_contradicting_another_is_refused) {
  for (const char* tail : {"b2", "causal_causaltl", "causal_causal", "bhsd_reversed", "bias11_biasbh",
                           "packed_packedq", "kvf8e4m3_kvi8", "scale1_scale2", "nolse_nolse"}) {
    EXPECT_THAT(message_of(fmt::format("f32_b1_hq1_sq1_d1_{}", tail)), HasSubstr("each kind of token once"))
        << tail;
  }
}

TEST(case_text, combinations_without_meaning_are_refused) {
  EXPECT_THAT(message_of("f32_b1_hq1_sq1_d1_packed_page4"), HasSubstr("both packed and paged"));
  EXPECT_THAT(message_of("f32_b1_hq1_sq1_d1_packedk_page4"), HasSubstr("both packed and paged"));
  EXPECT_THAT(message_of("f32_b1_hq1_sq1_d1_gap"), HasSubstr("'gap' is given without packed"));
  EXPECT_THAT(message_of("f32_b1_hq1_sq1_d1_biasinf"), HasSubstr("without a bias"));
  EXPECT_THAT(message_of("f32_b1_hq1_sq1_d1_packed_broadcastb"), HasSubstr("dense keys"));
}

TEST(case_text, numbers_out_of_range_and_no_numbers_are_refused) {
  constexpr std::string_view kTails[] = {"sk-1",
                                         "sk",
                                         "sk1.5",
                                         "sk+1",
                                         "sk 1",
                                         "sk1073741825",
                                         "sk99999999999999999999999",
                                         "hk0",
                                         "hk16385",
                                         "dv0",
                                         "dv4097",
                                         "wl-1",
                                         "page0",
                                         "page65537",
                                         "split0",
                                         "split1025",
                                         "seed-1",
                                         "scale",
                                         "scale1e31",
                                         "scale-1e31",
                                         "scale1e999",
                                         "scale0x10",
                                         "scale-inf",
                                         "scale-nan",
                                         "softcap0",
                                         "softcap-1",
                                         "mean10001",
                                         "mean--1"};
  for (const std::string_view tail : kTails) {
    EXPECT_THAT(message_of(fmt::format("f32_b1_hq1_sq1_d1_{}", tail)),
                AllOf(HasSubstr("in range"), HasSubstr("Allowed: ")))
        << tail;
  }
}

TEST(case_text, tensors_too_large_to_count_are_refused) {
  EXPECT_THAT(message_of("f32_b1048576_hq16384_sq1073741824_d4096"), HasSubstr("q or out would have"));
  EXPECT_THAT(message_of("f32_b1_hq1_sq1_hk16384_sk1073741824_d4096"), HasSubstr("k or v would have"));
  EXPECT_THAT(message_of("f32_b1_hq1_sq1073741824_d1_bias"), HasSubstr("bias would have"));
  EXPECT_THAT(message_of("f32_b3_hq1_sq1073741824_sk1_d1_packedq"), HasSubstr("rows"));
  EXPECT_THAT(message_of("f32_b1_hq1_sq1_sk1073741824_d1_page2"), HasSubstr("rows"));
  EXPECT_EQ(parse_case("bf16_b1_hq1_sq1048576_d128").seqlen_k, 1048576);
}

TEST(case_text, garbage_gives_an_error_with_printable_text) {
  std::mt19937_64 random(11);
  const std::string valid = "bf16_b2_hq32_hk4_sq512_sk512_d128_causal_scale0.5_page16";
  for (int n = 0; n < 20000; ++n) {
    std::string text = valid;
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      const std::size_t at = random() % (text.size() + 1);
      switch (random() % 3) {
        case 0: text.insert(at, 1, static_cast<char>(random())); break;
        case 1: text.erase(at, 1 + random() % 5); break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(random());
          break;
      }
    }
    try {
      const Case c = parse_case(text);
      ASSERT_EQ(parse_case(to_string(c)), c) << text;
    } catch (const InvalidArgument& error) {
      for (const char ch : std::string_view(error.what()))
        ASSERT_TRUE(ch == '\n' || (ch >= ' ' && ch <= '~')) << text;
    }
  }
}

}  // namespace
}  // namespace onepass
