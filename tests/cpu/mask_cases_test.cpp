// Inputs that broke the masks of other libraries: q = 0 makes attention uniform over the visible keys, v row
// j = j + 1 names them. Every small case comes with sizes that cross tiles, held to float64.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cpu/call.h"

namespace onepass {
namespace {

const double kLn2 = std::log(2.0);

/// Sizes around the tiles of every backend.
const std::vector<std::pair<std::int64_t, std::int64_t>> kTileCrossing = {
    {65, 200}, {200, 65}, {129, 129}, {3, 300}, {300, 7}};

void run_tile_crossing(const Target& target, const ForwardOptions& options) {
  for (const auto& [seqlen_q, seqlen_k] : kTileCrossing) {
    SCOPED_TRACE(std::to_string(seqlen_q) + " x " + std::to_string(seqlen_k));
    Call call =
        uniform_call(target, {.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim = 16, .head_dim_v = 16});
    call.options = options;
    call.run(target);
  }
}

TEST(mask_cases, r01_causal_with_more_keys_than_queries_is_bottom_right_or_top_left) {
  on_every_target([](const Target& target) {
    Call call = uniform_call(target, {.seqlen_q = 2, .seqlen_k = 5});
    call.options.causal = Causal::BottomRight;
    call.run(target);
    expect_rows(call, target, {2.5, 3.0}, {1.386294361, 1.609437912});
    run_tile_crossing(target, call.options);

    Call top_left = uniform_call(target, {.seqlen_q = 2, .seqlen_k = 5});
    top_left.options.causal = Causal::TopLeft;
    top_left.run(target);
    expect_rows(top_left, target, {1.0, 1.5}, {0, kLn2});
    run_tile_crossing(target, top_left.options);
  });
}

TEST(mask_cases, r02_rows_before_the_first_key_are_zero) {
  on_every_target([](const Target& target) {
    Call call = uniform_call(target, {.seqlen_q = 5, .seqlen_k = 2});
    call.options.causal = Causal::BottomRight;
    call.run(target);
    expect_rows(call, target, {0, 0, 0, 1.0, 1.5}, {-kInf, -kInf, -kInf, 0, kLn2});

    Call tall = uniform_call(target, {.seqlen_q = 300, .seqlen_k = 7, .head_dim = 24, .head_dim_v = 8});
    tall.options.causal = Causal::BottomRight;
    tall.run(target);
    std::vector<double> out(300, 0.0), lse(300, -kInf);
    for (std::size_t n = 1; n <= 7; ++n) {
      out[292 + n] = (static_cast<double>(n) + 1) / 2;
      lse[292 + n] = std::log(static_cast<double>(n));
    }
    expect_rows(tall, target, out, lse);
  });
}

TEST(mask_cases, r03_three_queries_at_the_end_of_a_tile_of_keys) {
  on_every_target([](const Target& target) {
    for (const std::int64_t seqlen_k : {128, 64, 256}) {
      Call call = uniform_call(target, {.seqlen_q = 3, .seqlen_k = seqlen_k});
      call.options.causal = Causal::BottomRight;
      call.run(target);
      const auto n = static_cast<double>(seqlen_k);
      expect_rows(call, target, {(n - 1) / 2, n / 2, (n + 1) / 2},
                  {std::log(n - 2), std::log(n - 1), std::log(n)});
    }
  });
}

TEST(mask_cases, r04_a_left_window_counts_from_the_rows_own_position) {
  on_every_target([](const Target& target) {
    for (const Causal causal : {Causal::None, Causal::BottomRight}) {
      Call call = uniform_call(target, {.seqlen_q = 6, .seqlen_k = 6});
      call.options.causal = causal;
      call.options.window_left = 2;
      call.options.window_right = 0;
      call.run(target);
      expect_rows(call, target, {1, 1.5, 2, 3, 4, 5},
                  {0, kLn2, std::log(3.0), std::log(3.0), std::log(3.0), std::log(3.0)});

      Call longer = uniform_call(target, {.seqlen_q = 3, .seqlen_k = 10});
      longer.options.causal = causal;
      longer.options.window_left = 4;
      longer.options.window_right = 0;
      longer.run(target);
      expect_rows(longer, target, {6, 7, 8}, std::vector<double>(3, std::log(5.0)));
      for (const std::int64_t left : {0, 63, 64, 65, 127, 1000}) {
        run_tile_crossing(target, {.causal = causal, .window_left = left, .window_right = 0});
      }
    }
    run_tile_crossing(target, {.window_left = 70, .window_right = 70});
    run_tile_crossing(target, {.window_right = 3});
    run_tile_crossing(target, {.causal = Causal::TopLeft, .window_left = 20});
  });
}

TEST(mask_cases, r07_one_query_over_key_counts_around_tiles) {
  on_every_target([](const Target& target) {
    for (const std::int64_t seqlen_k : {1, 15, 16, 17, 63, 65, 127, 129, 255, 257}) {
      Call call = uniform_call(target, {.seqlen_k = seqlen_k, .head_dim = 64, .head_dim_v = 64});
      call.args.v = call.keep(HostTensor(target.dtype, {1, seqlen_k, 1, 64}, constant(1)));
      call.run(target);
      for (std::int64_t d = 0; d < 64; ++d) EXPECT_EQ(call.out({0, 0, 0, d}), 1.0f) << seqlen_k;
      EXPECT_NEAR(call.lse({0, 0, 0}), std::log(static_cast<double>(seqlen_k)), 5e-6);
    }
  });
}

TEST(mask_cases, r08_only_the_last_row_of_each_sequence_sees_its_only_key) {
  on_every_target([](const Target& target) {
    Call call;
    call.args.q = call.keep(HostTensor(target.dtype, {256, 1, 32}, noise(1)));
    call.args.k = call.keep(HostTensor(target.dtype, {3, 1, 32}, noise(2)));
    call.args.v = call.keep(HostTensor(target.dtype, {3, 1, 32}, constant(2)));
    call.args.cu_seqlens_q = call.keep(HostTensor{0, 76, 110, 256});
    call.args.cu_seqlens_k = call.keep(HostTensor{0, 1, 2, 3});
    call.options.causal = Causal::BottomRight;
    call.run(target);
    for (std::int64_t row = 0; row < 256; ++row) {
      const bool last = row == 75 || row == 109 || row == 255;
      for (std::int64_t d = 0; d < 32; ++d) EXPECT_EQ(call.out({row, 0, d}), last ? 2.0f : 0.0f) << row;
      EXPECT_EQ(std::isinf(call.lse({0, row})), !last) << row;
    }
  });
}

TEST(mask_cases, r11_packed_decode_with_head_groups) {
  on_every_target([](const Target& target) {
    Call call;
    call.args.q = call.keep(HostTensor(target.dtype, {2, 9, 64}, constant(0)));
    call.args.k = call.keep(HostTensor(target.dtype, {8, 3, 64}, noise(1)));
    call.args.v = call.keep(HostTensor(target.dtype, {8, 3, 64},
                                       [](auto idx) { return (idx[0] < 3 ? idx[0] : idx[0] - 3) + 1; }));
    call.args.cu_seqlens_q = call.keep(HostTensor{0, 1, 1, 2});
    call.args.cu_seqlens_k = call.keep(HostTensor{0, 3, 3, 8});
    call.options.causal = Causal::BottomRight;
    call.options.max_seqlen_q = 1;
    call.run(target);
    expect_rows(call, target, {2, 3}, {std::log(3.0), std::log(5.0)});

    Call groups;
    groups.args.q = groups.keep(HostTensor(target.dtype, {1, 21, 120}, constant(0)));
    groups.args.k = groups.keep(HostTensor(target.dtype, {1, 7, 120}, noise(1)));
    groups.args.v = groups.keep(HostTensor(target.dtype, {1, 7, 120}, row_number(1)));
    groups.args.cu_seqlens_q = groups.args.cu_seqlens_k = groups.keep(HostTensor{0, 0, 0, 0, 1});
    groups.options.causal = Causal::BottomRight;
    groups.run(target);
    for (std::int64_t h = 0; h < 21; ++h) {
      EXPECT_EQ(groups.out({0, h, 0}), static_cast<float>(h / 3 + 1));
      EXPECT_EQ(groups.out({0, h, 119}), static_cast<float>(h / 3 + 1));
    }
  });
}

TEST(mask_cases, r12_nothing_to_see_or_nothing_to_write) {
  on_every_target([](const Target& target) {
    for (const std::int64_t head_dim : {64, 128, 256, 512}) {
      Call packed;
      packed.args.q = packed.keep(HostTensor(target.dtype, {6, 2, head_dim}, noise(1)));
      packed.args.k = packed.args.v = packed.keep(HostTensor(target.dtype, {7, 2, head_dim}, noise(2)));
      packed.args.cu_seqlens_q = packed.keep(HostTensor{0, 0, 1, 6, 6});
      packed.args.cu_seqlens_k = packed.keep(HostTensor{0, 7, 7, 7, 7});
      packed.run(target);
      expect_rows(packed, target, std::vector<double>(6, 0.0), std::vector<double>(6, -kInf));

      Call no_keys =
          uniform_call(target, {.seqlen_q = 70, .seqlen_k = 0, .head_dim = head_dim, .head_dim_v = head_dim});
      no_keys.run(target);
      expect_rows(no_keys, target, std::vector<double>(70, 0.0), std::vector<double>(70, -kInf));

      Call nothing;
      nothing.args.q = nothing.args.k = nothing.args.v =
          nothing.keep(HostTensor(target.dtype, {0, 2, head_dim}));
      nothing.args.cu_seqlens_q = nothing.args.cu_seqlens_k = nothing.keep(HostTensor{0});
      nothing.run(target);

      uniform_call(target, {.seqlen_q = 0, .seqlen_k = 5, .head_dim = head_dim, .head_dim_v = head_dim})
          .run(target);
      uniform_call(target, {.batch = 0, .seqlen_q = 3, .seqlen_k = 5, .head_dim = head_dim, .head_dim_v = 8})
          .run(target);
    }
  });
}

TEST(mask_cases, r23_lse_is_a_natural_logarithm) {
  on_every_target([](const Target& target) {
    Call call = uniform_call(target, {.seqlen_k = 8});
    call.run(target);
    expect_rows(call, target, {4.5}, {2.079441542});
  });
}

TEST(mask_cases, a_window_past_every_length_is_no_limit) {
  on_every_target([](const Target& target) {
    Call call = uniform_call(target, {.seqlen_q = 2, .seqlen_k = 5});
    call.options.window_left = call.options.window_right = std::numeric_limits<std::int64_t>::max();
    call.run(target);
    expect_rows(call, target, {3, 3}, {std::log(5.0), std::log(5.0)});
  });
}

TEST(mask_cases, nan_in_keys_and_values_reaches_the_rows_that_see_it_and_no_other) {
  on_every_target([](const Target& target) {
    for (const auto& [seqlen, poisoned] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{6, 3}, {200, 70}, {130, 129}}) {
      for (const bool in_values : {false, true}) {
        // Tensor cores multiply the 0 of a masked key by its value: 0 * NaN reaches the whole query tile.
        if (in_values && target.on_gpu()) continue;
        SCOPED_TRACE(std::to_string(seqlen) + (in_values ? " v" : " k"));
        Call call =
            uniform_call(target, {.seqlen_q = seqlen, .seqlen_k = seqlen, .head_dim = 8, .head_dim_v = 8});
        HostTensor bad(target.dtype, {1, seqlen, 1, 8}, noise(5));
        bad.set({0, poisoned, 0, 2}, kNan);
        (in_values ? call.args.v : call.args.k) = call.keep(std::move(bad));
        call.args.q = call.keep(HostTensor(target.dtype, {1, seqlen, 1, 8}, noise(6)));
        call.options.causal = Causal::BottomRight;
        call.run(target);  // the judge compares the places of NaN
        for (std::int64_t i = 0; i < seqlen; ++i) {
          EXPECT_EQ(std::isnan(call.out({0, i, 0, 2})), i >= poisoned) << i;
          EXPECT_EQ(std::isnan(call.out({0, i, 0, 1})), i >= poisoned && !in_values) << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace onepass
