// The golden cases of spec section 6.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "backends/cuda/kernels/common/tile_range.h"
#include "tests/cpu/call.h"

namespace onepass {
namespace {

HostTensor rows(DType dtype, const std::vector<std::vector<double>>& values) {
  return HostTensor(
      dtype, {1, static_cast<std::int64_t>(values.size()), 1, static_cast<std::int64_t>(values[0].size())},
      [&](auto idx) { return values[static_cast<std::size_t>(idx[1])][static_cast<std::size_t>(idx[3])]; });
}

TEST(golden, case_a_has_its_exact_fractions) {
  on_every_target([](const Target& target) {
    Call call;
    call.args.q = call.keep(rows(target.dtype, {{1, 0}, {0, 1}}));
    call.args.k = call.keep(rows(target.dtype, {{0, 1}, {1, 0}, {2, 1}, {0, 2}}));
    call.args.v = call.keep(rows(target.dtype, {{1, 0}, {0, 1}, {1, 1}, {2, 0}}));
    call.options.softmax_scale = std::numbers::ln2;
    call.run(target);
    const double out[2][2] = {{7.0 / 8, 3.0 / 4}, {4.0 / 3, 1.0 / 3}};
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t d = 0; d < 2; ++d) {
        EXPECT_NEAR(call.out({0, i, 0, d}), out[i][d], 2 * target.near(out[i][d])) << i << " " << d;
      }
    }
    EXPECT_NEAR(call.lse({0, 0, 0}), std::log(8.0), 2e-6);
    EXPECT_NEAR(call.lse({0, 0, 1}), std::log(9.0), 2e-6);
  });
}

TEST(golden, case_a_in_two_parts_of_two_keys_has_the_named_sums) {
  // Each half alone: o = U / l with l = 3/2 and U = [[1/2,1],[1,1/2]] after two keys (scaled to the maximum
  // so far).
  on_every_target([](const Target& target) {
    Call call;
    call.args.q = call.keep(rows(target.dtype, {{1, 0}, {0, 1}}));
    call.args.k = call.keep(rows(target.dtype, {{0, 1}, {1, 0}}));
    call.args.v = call.keep(rows(target.dtype, {{1, 0}, {0, 1}}));
    call.options.softmax_scale = std::numbers::ln2;
    call.run(target);
    EXPECT_NEAR(call.out({0, 0, 0, 0}), 0.5 / 1.5, 2 * target.near(1.0 / 3));
    EXPECT_NEAR(call.out({0, 0, 0, 1}), 1.0 / 1.5, 2 * target.near(2.0 / 3));
    EXPECT_NEAR(call.out({0, 1, 0, 0}), 1.0 / 1.5, 2 * target.near(2.0 / 3));
    EXPECT_NEAR(call.out({0, 1, 0, 1}), 0.5 / 1.5, 2 * target.near(1.0 / 3));
    EXPECT_NEAR(call.lse({0, 0, 0}), std::log(3.0), 2e-6);  // 2 * 3/2
    EXPECT_NEAR(call.lse({0, 0, 1}), std::log(3.0), 2e-6);
  });
}

TEST(golden, case_b_one_query_and_four_keys_in_one_dimension) {
  on_every_target([](const Target& target) {
    Call call;
    call.args.q = call.keep(rows(target.dtype, {{1}}));
    call.args.k = call.keep(rows(target.dtype, {{1}, {2}, {3}, {0}}));
    call.args.v = call.keep(rows(target.dtype, {{10}, {20}, {30}, {40}}));
    call.options.softmax_scale = 1.0;
    call.run(target);
    const double e = std::numbers::e, l = e + e * e + e * e * e + 1;
    const double out = (10 * e + 20 * e * e + 30 * e * e * e + 40) / l;
    EXPECT_NEAR(call.out({0, 0, 0, 0}), out, 3 * target.near(out));
    EXPECT_NEAR(call.lse({0, 0, 0}), std::log(l), 1e-5);
  });
}

TEST(golden, case_c_chunked_prefill_rows_see_9_10_11_12_then_12_then_6_keys) {
  on_every_target([](const Target& target) {
    Call call;
    const std::int64_t page = 4, head_dim = 8;
    call.args.q = call.keep(HostTensor(target.dtype, {6, 2, head_dim}, constant(0)));
    call.args.cu_seqlens_q = call.keep(HostTensor{0, 4, 5, 6});
    call.args.seqused_k = call.keep(HostTensor{12, 12, 6});
    call.args.k = call.keep(HostTensor(target.dtype, {9, page, 1, head_dim}));
    call.args.v = call.keep(HostTensor(target.dtype, {9, page, 1, head_dim}));
    HostTensor table(DType::I32, {3, 3});
    auto* pages = static_cast<std::int32_t*>(table.view().data);
    const std::int32_t used[9] = {4, 0, 7, 1, 8, 3, 6, 2, -7};
    for (std::int64_t n = 0; n < 9; ++n) pages[n] = used[n];
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t j = 0; j < (b == 2 ? 6 : 12); ++j) {
        for (std::int64_t d = 0; d < head_dim; ++d) {
          call.memory[3].set({pages[b * 3 + j / page], j % page, 0, d}, 1);
          call.memory[4].set({pages[b * 3 + j / page], j % page, 0, d}, static_cast<float>(j + 1));
        }
      }
    }
    call.args.block_table = call.keep(std::move(table));
    call.options.causal = Causal::BottomRight;
    call.run(target);
    const double counts[6] = {9, 10, 11, 12, 12, 6};
    std::vector<double> out, lse;
    for (const double n : counts) {
      out.push_back((n + 1) / 2);
      lse.push_back(std::log(n));
    }
    expect_rows(call, target, out, lse);
  });
}

TEST(golden, case_d_packed_sequences_give_the_bits_of_each_alone) {
  on_every_target([](const Target& target) {
    const HostTensor q(target.dtype, {10, 2, 16}, noise(1)), k(target.dtype, {10, 2, 16}, noise(2)),
        v(target.dtype, {10, 2, 16}, noise(3));
    const std::int32_t cu[4] = {0, 3, 8, 10};
    Call packed;
    packed.args.q = q.view();
    packed.args.k = k.view();
    packed.args.v = v.view();
    packed.args.cu_seqlens_q = packed.args.cu_seqlens_k = packed.keep(HostTensor{0, 3, 8, 10});
    packed.options.causal = Causal::BottomRight;
    packed.options.num_splits = 1;
    packed.run(target);
    for (std::size_t b = 0; b < 3; ++b) {
      const std::int64_t start = cu[b], length = cu[b + 1] - cu[b];
      Call alone;
      const auto slice = [&](const HostTensor& t) {
        return make_view(static_cast<const char*>(t.view().data) + start * 32 * dtype_bytes(target.dtype),
                         target.dtype, {1, length, 2, 16});
      };
      alone.args.q = slice(q);
      alone.args.k = slice(k);
      alone.args.v = slice(v);
      alone.options = packed.options;
      alone.run(target);
      for (std::int64_t i = 0; i < length; ++i) {
        for (std::int64_t h = 0; h < 2; ++h) {
          EXPECT_NEAR(packed.lse({h, start + i}), alone.lse({0, h, i}), 1e-6);
          for (std::int64_t d = 0; d < 16; ++d) {
            EXPECT_NEAR(packed.out({start + i, h, d}), alone.out({0, i, h, d}), 2 * target.rounding());
          }
        }
      }
    }
  });
}

struct BlockCount {
  Index visited = 0, masked = 0;
};

BlockCount count_blocks(KeyBand band, Index seqlen, Index tile) {
  BlockCount count;
  for (Index row = 0; row < seqlen; row += tile) {
    const TileRange range = tile_range(band, seqlen, row, row + tile, tile);
    count.visited += range.n_block_max - range.n_block_min;
    count.masked += range.n_block_max - range.n_block_min - (range.n_block_full_max - range.n_block_full_min);
  }
  return count;
}

TEST(golden, case_e_visits_10_of_16_blocks_of_a_causal_square_and_masks_4) {
  const BlockCount causal = count_blocks(key_band(MaskKind::CausalBottomRight, -1, -1, 256, 256), 256, 64);
  EXPECT_EQ(causal.visited, 10);
  EXPECT_EQ(causal.masked, 4);
  const KeyBand window = key_band(MaskKind::None, 191, 0, 512, 512);
  EXPECT_EQ(count_blocks(window, 512, 64).visited, 26);
  const TileRange fourth = tile_range(window, 512, 3 * 64, 4 * 64, 64);
  EXPECT_EQ(fourth.n_block_max - fourth.n_block_min, 4);
  EXPECT_EQ(fourth.n_block_full_min - fourth.n_block_min, 1);
  EXPECT_EQ(fourth.n_block_max - fourth.n_block_full_max, 1);
}

TEST(golden, case_e_numbers_agree_with_float64) {
  on_every_target([](const Target& target) {
    for (const bool window : {false, true}) {
      Call call;
      const std::int64_t seqlen = window ? 512 : 256;
      for (auto [view, seed] : {std::pair{&call.args.q, 1}, {&call.args.k, 2}, {&call.args.v, 3}}) {
        *view = call.keep(HostTensor(target.dtype, {1, seqlen, 1, 32}, noise(seed)));
      }
      if (window) {
        call.options.window_left = 191;
        call.options.window_right = 0;
      } else {
        call.options.causal = Causal::BottomRight;
      }
      call.run(target);
    }
  });
}

}  // namespace
}  // namespace onepass
