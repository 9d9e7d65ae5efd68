#include "dispatch/heuristics_sm90_backward.h"

#include <gmock/gmock.h>

#include "plan/make_plan.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::bf16_problem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using testing::packed_problem;

DeviceInfo h200() { return find_device("h200").value(); }

AttentionProblem backward(AttentionProblem problem) {
  problem.gradient = {.dout = problem.out, .dq = problem.q, .dk = problem.k, .dv = problem.v};
  return problem;
}
AttentionProblem causal(AttentionProblem problem) {
  problem.causal = Causal::BottomRight;
  return problem;
}
AttentionProblem plain() { return backward(bf16_problem(2, 16, 4, 512, 512, 128)); }

std::string name_of(const AttentionProblem& problem) {
  EXPECT_EQ(decline_sm90_backward(problem, h200()), std::nullopt);
  return kernel_name(choose_sm90_backward(problem, h200()).backward);
}

TEST(heuristics_sm90_backward, a_head_dim_has_its_tile_and_a_mask_its_kernel) {
  EXPECT_EQ(name_of(plain()), "sm90_backward_bf16_d128_v128_m64n128w12c1s1b1_l16s16_sm90");
  EXPECT_EQ(name_of(causal(plain())), "sm90_backward_bf16_d128_v128_m64n128w12c1s1b1_l16s16_end_sm90");
  AttentionProblem window = backward(bf16_problem(2, 16, 4, 512, 512, 64));
  window.window_left = 100;
  EXPECT_EQ(name_of(window), "sm90_backward_bf16_d64_v64_m128n128w12c1s1b1_l16s16_end_begin_sm90");
  window.window_left = -1;
  window.window_right = 0;
  EXPECT_EQ(name_of(window), "sm90_backward_bf16_d64_v64_m128n128w12c1s1b1_l16s16_end_sm90");
}

TEST(heuristics_sm90_backward, wide_heads_have_tiles_of_fewer_keys) {
  AttentionProblem wide = backward(bf16_problem(2, 16, 4, 512, 512, 192));
  EXPECT_EQ(name_of(wide), "sm90_backward_bf16_d192_v192_m64n64w12c1s1b1_l16s16_sm90");
  wide.head_dim_v = 128;
  EXPECT_EQ(name_of(wide), "sm90_backward_bf16_d192_v128_m64n64w12c1s1b1_l16s16_sm90");
  EXPECT_EQ(choose_sm90_backward(wide, h200()).order.num_tiles, 2 * 4 * 512 / 64);
}

TEST(heuristics_sm90_backward, fits_the_shared_memory_of_a_hopper) {
  for (const std::int64_t head_dim : {64, 128, 136, 256}) {
    const KernelSpec spec =
        choose_sm90_backward(backward(bf16_problem(1, 1, 1, 64, 64, head_dim)), h200()).backward;
    EXPECT_LE(static_cast<std::int64_t>(shared_bytes(spec)), h200().shared_bytes_per_block) << head_dim;
  }
}

TEST(heuristics_sm90_backward, plans_prepare_backward_and_finish_with_room_for_their_sums) {
  const Plan plan = make_plan("plan", causal(plain()), {}, h200());
  EXPECT_EQ(plan.implementation, "sm90_backward");
  std::vector<std::string> kernels;
  std::vector<std::int64_t> grids;
  for (const PlanStep& step : plan.steps) {
    kernels.push_back(step.kernel.substr(0, step.kernel.find("_bf16")));
    grids.push_back(step.num_work_items);
  }
  EXPECT_THAT(kernels, ElementsAre("sm90_backward_prepare", "sm90_backward", "sm90_backward_finish"));
  EXPECT_THAT(grids, ElementsAre(2 * 16 * 8, 2 * 4 * 4, 2 * 16 * 8));
  std::vector<std::pair<std::string, std::size_t>> pieces;
  for (const WorkspacePiece& piece : plan.workspace) pieces.emplace_back(piece.name, piece.bytes);
  constexpr std::size_t kRows = 2 * 16 * 512;
  EXPECT_THAT(pieces, ElementsAre(std::pair(kPieceLseLog2, 4 * kRows), std::pair(kPieceDelta, 4 * kRows),
                                  std::pair(kPieceDqSums, 4 * 128 * kRows),
                                  std::pair(kPieceTurns, 4 * kRows / 64), std::pair(kPieceTicket, 8)));
}

TEST(heuristics_sm90_backward, long_sequences_go_heads_after_heads_in_a_tenth_of_their_memory) {
  const auto plan = [](std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen) {
    return make_plan("plan", causal(backward(bf16_problem(1, heads_q, heads_k, seqlen, seqlen, 128))), {},
                     h200());
  };
  const Plan long_one = plan(16, 16, 65536);
  const std::size_t tensors = 8UL * 2 * 16 * 65536 * 128;  // q, k, v, out and their gradients
  EXPECT_LT(long_one.workspace_bytes(), tensors / 10);
  ASSERT_EQ(long_one.parts.size(), 4U);
  EXPECT_EQ(long_one.parts[0].problem->num_heads_k, 4);
  EXPECT_EQ(long_one.parts[0].steps.size(), 3U);
  EXPECT_THAT(long_one.explain(), HasSubstr("4 times 4 key heads"));
  const Plan uneven = plan(20, 5, 65536);
  ASSERT_EQ(uneven.parts.size(), 5U);
  EXPECT_EQ(uneven.parts[4].problem->num_heads_q, 4);
  EXPECT_TRUE(plan(16, 16, 16384).parts.empty());
  EXPECT_TRUE(plan(16, 1, 65536).parts.empty());  // one key head, whatever it takes
}

TEST(heuristics_sm90_backward, rows_of_no_sequence_are_filled_first) {
  AttentionProblem packed = packed_problem(4, 8, 8, 512, 900, 512, 900, 64);
  packed.q = packed.k = packed.v = packed.out = {0, 8 * 64, 64, 1};
  const Plan plan = make_plan("plan", backward(packed), {}, h200());
  EXPECT_EQ(plan.implementation, "sm90_backward");
  EXPECT_THAT(plan.steps.front().kernel, HasSubstr("fill_gradients"));
  // Each sequence has room up to a multiple of 128 rows, wherever it begins.
  EXPECT_THAT(plan.workspace.front().bytes, 4 * 8 * (900 / 128 + 4) * 128);
}

TEST(heuristics_sm90_backward, head_dims_in_eights_have_sums_of_whole_column_blocks) {
  const auto sums = [](std::int64_t head_dim, std::int64_t head_dim_v) {
    AttentionProblem problem = backward(bf16_problem(1, 1, 1, 128, 128, head_dim));
    problem.head_dim_v = head_dim_v;
    for (const WorkspacePiece& piece : make_plan("plan", problem, {}, h200()).workspace)
      if (piece.name == kPieceDqSums) return piece.bytes;
    return std::size_t{0};
  };
  EXPECT_EQ(sums(96, 96), 4 * 128 * 128u);
  EXPECT_EQ(sums(72, 40), 4 * 128 * 128u);
  EXPECT_EQ(sums(40, 64), 4 * 128 * 40u);
  EXPECT_EQ(sums(136, 72), 4 * 128 * 256u);
}

TEST(heuristics_sm90_backward, sinks_get_their_gradients_from_a_step_of_their_own) {
  AttentionProblem problem = plain();
  problem.has_sinks = problem.gradient->has_dsinks = true;
  EXPECT_THAT(make_plan("plan", problem, {}, h200()).steps.back().kernel, HasSubstr("backward_sinks"));
}

// {tiles, descending heads, of which take turns, of the others}. 50 MiB of L2; a head of 128 dimensions has
// 1 KiB a row.
TEST(heuristics_sm90_backward, heads_without_a_mask_take_turns) {
  const auto order = [](std::int64_t heads, std::int64_t seqlen) {
    return choose_sm90_backward(backward(bf16_problem(1, heads, heads, seqlen, seqlen, 128)), h200()).order;
  };
  EXPECT_EQ(order(512, 512), (Sm90BackwardOrder{512 * 4, 0, 1, 32}));  // 33 fill the GPU: 16 groups
  EXPECT_EQ(order(128, 2048), (Sm90BackwardOrder{128 * 16, 0, 1, 8}));
  EXPECT_EQ(order(64, 4096), (Sm90BackwardOrder{64 * 32, 0, 1, 4}));
  EXPECT_EQ(order(64, 32768),
            (Sm90BackwardOrder{64 * 256, 0, 1, 4}));  // fewer would follow each other too closely
  EXPECT_EQ(order(2, 512), (Sm90BackwardOrder{2 * 4, 0, 1, 2}));
}

TEST(heuristics_sm90_backward,
     with_a_mask_heads_take_turns_as_far_as_the_cache_holds_them_and_the_last_fill_the_end) {
  const auto order = [](std::int64_t heads, std::int64_t seqlen) {
    return choose_sm90_backward(causal(backward(bf16_problem(1, heads, heads, seqlen, seqlen, 128))), h200())
        .order;
  };
  EXPECT_EQ(order(64, 4096), (Sm90BackwardOrder{64 * 32, 58, 4, 6}));
  EXPECT_EQ(order(32, 8192), (Sm90BackwardOrder{32 * 64, 29, 3, 3}));
  EXPECT_EQ(order(16, 16384), (Sm90BackwardOrder{16 * 128, 15, 1, 1}));
  EXPECT_EQ(order(2, 512), (Sm90BackwardOrder{2 * 4, 0, 1, 2}));
}

TEST(heuristics_sm90_backward, batch_invariant_with_a_mask_all_heads_descend) {
  for (const std::int64_t batch : {1, 3}) {
    AttentionProblem problem = causal(backward(bf16_problem(batch, 2, 2, 512, 512, 128)));
    problem.batch_invariant = true;
    EXPECT_EQ(choose_sm90_backward(problem, h200()).order.descending_heads, 2 * batch);
  }
}

TEST(heuristics_sm90_backward, declines_what_it_does_not_know_yet_with_the_value) {
  const auto reason = [](auto change) {
    AttentionProblem problem = plain();
    change(problem);
    return decline_sm90_backward(problem, h200());
  };
  EXPECT_THAT(reason([](auto& p) { p.softcap = 20; }), Optional(HasSubstr("softcap")));
  EXPECT_THAT(reason([](auto& p) { p.softmax_scale = 0; }),
              Optional(HasSubstr("scale that is not positive")));
  EXPECT_THAT(reason([](auto& p) { p.head_dim = 64; }), Optional(HasSubstr("they are 64 and 128")));
  EXPECT_THAT(reason([](auto& p) { p.head_dim = 132; }), Optional(HasSubstr("they are 132 and 128")));
  EXPECT_THAT(reason([](auto& p) { p.head_dim_v = 264; }), Optional(HasSubstr("they are 128 and 264")));
  EXPECT_THAT(reason([](auto& p) { p.head_dim = 192, p.head_dim_v = 64; }),
              Optional(HasSubstr("they are 192 and 64")));
  EXPECT_THAT(reason([](auto& p) {
                p.gradient->dout = {0, 0, 0, 0};
              }),
              Optional(HasSubstr("strides of dout")));
  EXPECT_THAT(reason([](auto& p) { p.gradient->dk.row = 4; }), Optional(HasSubstr("strides of dk")));
  EXPECT_THAT(reason([](auto& p) { p.seqlen_q = p.total_q = 0; }), Optional(HasSubstr("needs queries")));
  EXPECT_THAT(decline_sm90_backward(plain(), find_device("a100").value()), Optional(HasSubstr("9.0")));
}

}  // namespace
}  // namespace onepass
