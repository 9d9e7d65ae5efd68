// Inputs that broke scores, softmax and their extras in other libraries: large logits, caps, bias, ALiBi,
// sinks, f8.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "tests/cpu/call.h"

namespace onepass {
namespace {

TEST(score_cases, r13_one_key_gives_its_value_whatever_the_size_of_the_logit) {
  on_targets({DType::F32, DType::BF16}, [](const Target& target) {  // f16 cannot hold 133120
    Call call;
    call.args.q = call.args.k = call.args.v =
        call.keep(HostTensor(target.dtype, {1, 1, 1, 64}, constant(133120)));
    call.options.softmax_scale = 0.125;
    call.run(target);
    for (std::int64_t d = 0; d < 64; ++d) EXPECT_EQ(call.out({0, 0, 0, d}), 133120.0f);
    EXPECT_NEAR(call.lse({0, 0, 0}), 1.41767e11, 1e6);
  });
}

TEST(score_cases, r15_softcap_comes_before_the_mask) {
  on_every_target([](const Target& target) {
    const auto capped = [&](double k0, double k1) {  // raw scores 50 * k0, 50 * k1
      Call call;
      call.args.q = call.keep(HostTensor(target.dtype, {1, 1, 1, 1}, constant(50)));
      call.args.k =
          call.keep(HostTensor(target.dtype, {1, 2, 1, 1}, [=](auto idx) { return idx[1] == 0 ? k0 : k1; }));
      call.args.v = call.keep(HostTensor(target.dtype, {1, 2, 1, 1}, row_number(1)));
      call.options.softmax_scale = 1.0;
      call.options.softcap = 50;
      call.run(target);
      return call;
    };
    expect_rows(capped(100, 200), target, {1.5}, {50.693147181});
    expect_rows(capped(100, -100), target, {1.0}, {50.0});

    Call causal = uniform_call(target, {.seqlen_q = 2, .seqlen_k = 2});
    causal.options.causal = Causal::BottomRight;
    causal.options.softcap = 1;
    causal.run(target);
    expect_rows(causal, target, {1.0, 1.5}, {0, std::log(2.0)});
  });
}

TEST(score_cases, r17_a_finite_bias_however_negative_is_no_mask) {
  on_every_target([](const Target& target) {
    for (const std::int64_t seqlen_k : {3, 129}) {
      Call call = uniform_call(target, {.seqlen_k = seqlen_k});
      call.args.bias =
          call.keep(HostTensor(DType::F32, {1, 1, 1, seqlen_k}, constant(-3.4028234663852886e38)));
      call.run(target);
      const double mean = (static_cast<double>(seqlen_k) + 1) / 2;
      EXPECT_NEAR(call.out({0, 0, 0, 0}), mean, target.near(mean));
      EXPECT_TRUE(std::isfinite(call.lse({0, 0, 0})));
    }
  });
}

TEST(score_cases, a_bias_of_minus_infinity_hides_keys_even_a_whole_first_tile_or_row) {
  on_every_target([](const Target& target) {
    Call call = uniform_call(target, {.seqlen_q = 3, .seqlen_k = 300});
    call.args.bias = call.keep(HostTensor(DType::F32, {1, 1, 3, 300}, [](auto idx) {
      if (idx[2] == 0) return idx[3] == 299 ? 0.0 : -static_cast<double>(kInf);  // only the last key
      if (idx[2] == 1) return -static_cast<double>(kInf);                        // none
      return idx[3] == 1 ? 0.0 : -static_cast<double>(kInf);                     // only the second
    }));
    call.run(target);
    EXPECT_NEAR(call.out({0, 0, 0, 0}), 300, target.near(300));
    EXPECT_EQ(call.out({0, 1, 0, 0}), 0.0f);
    EXPECT_EQ(call.out({0, 2, 0, 0}), 2.0f);
    EXPECT_NEAR(call.lse({0, 0, 0}), 0.0, 1e-6);
    EXPECT_EQ(call.lse({0, 0, 1}), -kInf);
  });
}

TEST(score_cases, r21_products_and_sums_past_the_range_of_f16) {
  on_every_target([](const Target& target) {
    Call large = uniform_call(target, {.seqlen_k = 2, .head_dim = 128, .head_dim_v = 128});
    large.args.q = large.keep(HostTensor(target.dtype, {1, 1, 1, 128}, constant(32)));
    large.args.k = large.keep(HostTensor(target.dtype, {1, 2, 1, 128}, constant(32)));
    large.run(target);
    expect_rows(large, target, {1.5}, {131072 / std::sqrt(128.0) + std::log(2.0)});

    Call sum = uniform_call(target, {.seqlen_k = 64, .head_dim = 128, .head_dim_v = 128});
    sum.args.v = sum.keep(HostTensor(target.dtype, {1, 64, 1, 128}, constant(60000)));
    sum.run(target);
    for (std::int64_t d = 0; d < 128; ++d) {
      EXPECT_EQ(sum.out({0, 0, 0, d}), Call::element(sum.args.v, {0, 0, 0, d}));
    }
  });
}

TEST(score_cases, r22_descale_factors_of_8_bit_keys_and_values_both_count) {
  on_cpu_targets([](const Target& target) {
    for (const DType kv : {DType::F8E4M3, DType::F8E5M2, DType::I8}) {
      Call call;
      call.args.q = call.keep(HostTensor(target.dtype, {1, 1, 1, 1}, constant(2)));
      HostTensor k(kv, {1, 2, 1, 1}), v(kv, {1, 2, 1, 1});
      using Bits = std::array<std::uint8_t, 3>;  // of 4, 8, 2
      const Bits bits = kv == DType::F8E4M3   ? Bits{0x48, 0x50, 0x40}
                        : kv == DType::F8E5M2 ? Bits{0x44, 0x48, 0x40}
                                              : Bits{4, 8, 2};
      k.set_bits({0, 0, 0, 0}, bits[0]);
      k.set_bits({0, 1, 0, 0}, 0x00);
      v.set_bits({0, 0, 0, 0}, bits[1]);
      v.set_bits({0, 1, 0, 0}, bits[2]);
      call.args.k = call.keep(std::move(k));
      call.args.v = call.keep(std::move(v));
      call.args.k_descale = call.keep(HostTensor(DType::F32, {1}, constant(0.25)));
      call.args.v_descale = call.keep(HostTensor(DType::F32, {1}, constant(0.5)));
      call.options.softmax_scale = 1.0;
      call.run(target);
      EXPECT_NEAR(call.out({0, 0, 0, 0}), 3.642391, 3 * target.near(3.642391));
      EXPECT_NEAR(call.lse({0, 0, 0}), 2.126928, 3e-6);
    }
  });
}

// Key 0 is in page 2, key 1 in page 0; nobody has page 1.
TEST(score_cases, factors_of_pages_are_those_of_the_page_that_holds_a_key) {
  on_cpu_targets([](const Target& target) {
    for (const std::int64_t seqlen_q : {1, 40}) {  // by rows, and by columns
      Call call;
      call.args.q = call.keep(HostTensor(target.dtype, {1, seqlen_q, 1, 1}, constant(2)));
      HostTensor k(DType::I8, {3, 1, 1, 1}), v(DType::I8, {3, 1, 1, 1});
      HostTensor k_descale(DType::F32, {3, 1, 1}), v_descale(DType::F32, {3, 1, 1});
      const auto fill = [&](std::int64_t page, std::uint8_t key, float key_factor, std::uint8_t value,
                            float value_factor) {
        k.set_bits({page, 0, 0, 0}, key);
        v.set_bits({page, 0, 0, 0}, value);
        k_descale.set({page, 0, 0}, key_factor);
        v_descale.set({page, 0, 0}, value_factor);
      };
      fill(0, 2, 0.5f, 2, 4.0f);
      fill(1, 1, kNan, 1, kNan);
      fill(2, 4, 0.25f, 8, 0.5f);
      HostTensor table(DType::I32, {1, 2}), used(DType::I32, {1});
      auto* entries = static_cast<std::int32_t*>(table.view().data);
      entries[0] = 2;
      entries[1] = 0;
      *static_cast<std::int32_t*>(used.view().data) = 2;
      call.args.k = call.keep(std::move(k));
      call.args.v = call.keep(std::move(v));
      call.args.k_descale = call.keep(std::move(k_descale));
      call.args.v_descale = call.keep(std::move(v_descale));
      call.args.block_table = call.keep(std::move(table));
      call.args.seqused_k = call.keep(std::move(used));
      call.options.softmax_scale = 1.0;
      call.run(target);
      for (std::int64_t i = 0; i < seqlen_q; ++i) {
        EXPECT_EQ(call.out({0, i, 0, 0}), 6.0f) << "the mean of 4 and 8";
        EXPECT_NEAR(call.lse({0, 0, i}), 2 + std::log(2.0), 3e-6);
      }
    }
  });
}

TEST(score_cases, r39_alibi_measures_from_the_rows_own_position) {
  on_every_target([](const Target& target) {
    const auto alibi = [&](Causal causal) {
      Call call = uniform_call(target, {.seqlen_q = 2, .seqlen_k = 5});
      call.args.alibi_slopes = call.keep(HostTensor(DType::F32, {1}, constant(0.5)));
      call.options.causal = causal;
      call.run(target);
      return call;
    };
    // 16-bit probabilities round on their own: a few times the rounding of the output.
    const Call causal = alibi(Causal::BottomRight), full = alibi(Causal::None);
    EXPECT_NEAR(causal.out({0, 0, 0, 0}), 3.084576, 2 * target.near(3.084576));
    EXPECT_NEAR(causal.out({0, 1, 0, 0}), 3.905633, 2 * target.near(3.905633));
    EXPECT_NEAR(causal.lse({0, 0, 0}), 0.787339, 2e-6);
    EXPECT_NEAR(causal.lse({0, 0, 1}), 0.847102, 2e-6);
    EXPECT_NEAR(full.out({0, 0, 0, 0}), 3.498890, 2 * target.near(3.498890));
    EXPECT_NEAR(full.out({0, 1, 0, 0}), 3.905633, 2 * target.near(3.905633));
  });
}

TEST(score_cases, r40_a_sink_takes_its_share_and_enters_the_lse) {
  on_every_target([](const Target& target) {
    const auto with_sink = [&](double sink, std::int64_t seqlen_k) {
      Call call = uniform_call(target, {.seqlen_k = seqlen_k});
      call.args.sinks = call.keep(HostTensor(DType::F32, {1}, constant(sink)));
      call.run(target);
      return call;
    };
    const double out[] = {1.5, 0.577531, 0, 2.0}, lse[] = {1.386294, 2.340753, 100, 1.098612};
    const double sinks[] = {0, 2, 100, -static_cast<double>(kInf)};
    for (std::size_t n = 0; n < 4; ++n) {
      const Call call = with_sink(sinks[n], 3);
      EXPECT_NEAR(call.out({0, 0, 0, 0}), out[n], 2 * target.near(out[n]) + 1e-6) << sinks[n];
      EXPECT_NEAR(call.lse({0, 0, 0}), lse[n], 2e-6 * (1 + lse[n])) << sinks[n];
    }
    const Call no_key = with_sink(2, 0);
    EXPECT_EQ(no_key.out({0, 0, 0, 0}), 0.0f);
    EXPECT_EQ(no_key.lse({0, 0, 0}), 2.0f);
    const Call nothing = with_sink(-static_cast<double>(kInf), 0);
    EXPECT_EQ(nothing.out({0, 0, 0, 0}), 0.0f);
    EXPECT_EQ(nothing.lse({0, 0, 0}), -kInf);
  });
}

TEST(score_cases, r46_lse_of_two_keys_with_odds_of_three) {
  on_every_target([](const Target& target) {
    Call call;
    call.args.q = call.keep(HostTensor(target.dtype, {1, 1, 1, 1}, constant(1)));
    call.args.k = call.keep(
        HostTensor(target.dtype, {1, 2, 1, 1}, [](auto idx) { return idx[1] == 0 ? 0.0 : std::log(3.0); }));
    call.args.v = call.keep(HostTensor(target.dtype, {1, 2, 1, 1}, row_number(1)));
    call.options.softmax_scale = 1.0;
    call.run(target);
    const double log3 = Call::element(call.args.k, {0, 1, 0, 0});  // as the dtype holds it
    EXPECT_NEAR(call.lse({0, 0, 0}), std::log(1 + std::exp(log3)), 2e-6);
    EXPECT_NEAR(call.lse({0, 0, 0}), std::log(4.0), target.near(1.0986) + 2e-6);
  });
}

TEST(score_cases, zero_and_negative_scales_are_as_good_as_any) {
  on_every_target([](const Target& target) {
    for (const double scale : {0.0, -0.3, 1e-20, 3.0}) {
      Call call;
      for (auto [view, seed] : {std::pair{&call.args.q, 1}, {&call.args.k, 2}, {&call.args.v, 3}}) {
        *view = call.keep(HostTensor(target.dtype, {1, 70, 2, 8}, noise(seed)));
      }
      call.options.softmax_scale = scale;
      call.run(target);
    }
  });
}

TEST(score_cases, logits_of_any_finite_size_give_the_true_softmax) {
  on_every_target([](const Target& target) {
    // Two keys whose scores differ by ln 3 * 2^n at an offset of -6e4 to 6e4, in one row, over several tiles.
    for (const double offset : {-60000.0, 60000.0}) {
      Call call = uniform_call(target, {.seqlen_k = 300, .head_dim = 1, .head_dim_v = 1});
      call.args.q = call.keep(HostTensor(target.dtype, {1, 1, 1, 1}, constant(1)));
      call.args.k = call.keep(HostTensor(target.dtype, {1, 300, 1, 1}, constant(offset)));
      call.options.softmax_scale = 1.0;
      call.run(target);
      EXPECT_NEAR(call.out({0, 0, 0, 0}), 150.5, target.near(150.5) * (target.dtype == DType::BF16 ? 2 : 1));
    }
  });
}

}  // namespace
}  // namespace onepass
