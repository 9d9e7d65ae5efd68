#include "dispatch/heuristics_sm90.h"

#include <gmock/gmock.h>

#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::bf16_problem;
using ::testing::HasSubstr;
using ::testing::Optional;
using testing::packed_problem;

DeviceInfo h200() { return find_device("h200").value(); }

AttentionProblem causal(AttentionProblem problem) {
  problem.causal = Causal::BottomRight;
  return problem;
}
AttentionProblem window(AttentionProblem problem) {
  problem.window_left = 256;
  problem.window_right = 0;
  return problem;
}
/// A problem that the family takes, for one change that it does not.
AttentionProblem plain() { return bf16_problem(2, 16, 4, 512, 512, 128); }

std::string name_of(const AttentionProblem& problem) {
  EXPECT_EQ(decline_sm90_forward(problem, h200(), 0), std::nullopt);
  const std::string name = kernel_name(choose_sm90_forward(problem, h200()).forward);
  EXPECT_EQ(name, kernel_name(choose_sm90_forward(problem, find_device("h100").value()).forward));
  return name;
}

TEST(heuristics_sm90, long_prefill_takes_the_measured_tile_of_its_head_dim) {
  EXPECT_EQ(name_of(bf16_problem(4, 32, 32, 4096, 4096, 64)),
            "sm90_forward_bf16_d64_v64_m192n128w16c1s3b1_l16s16_q2_sm90");
  EXPECT_EQ(name_of(bf16_problem(4, 32, 32, 4096, 4096, 96)),
            "sm90_forward_bf16_d96_v96_m128n128w12c1s2b1_l16s16_q2_p2_sm90");
  EXPECT_EQ(name_of(bf16_problem(4, 32, 32, 4096, 4096, 128)),
            "sm90_forward_bf16_d128_v128_m128n128w12c1s2b1_l16s16_q2_p2_sm90");
  EXPECT_EQ(name_of(bf16_problem(4, 32, 32, 4096, 4096, 192)),
            "sm90_forward_bf16_d192_v192_m128n96w12c1s2b1_l16s16_sm90");
  EXPECT_EQ(name_of(bf16_problem(4, 32, 32, 4096, 4096, 256)),
            "sm90_forward_bf16_d256_v256_m128n64w12c1s2b1_l16s16_sm90");
  AttentionProblem latent = bf16_problem(4, 32, 32, 4096, 4096, 192);
  latent.head_dim_v = 128;
  EXPECT_EQ(name_of(latent), "sm90_forward_bf16_d192_v128_m128n128w12c1s2b1_l16s16_p2_sm90");
}

TEST(heuristics_sm90, a_mask_is_part_of_the_kernel_and_draws_tickets) {
  const AttentionProblem prefill = bf16_problem(4, 32, 32, 4096, 4096, 128);
  EXPECT_EQ(name_of(causal(prefill)),
            "sm90_forward_bf16_d128_v128_m128n128w12c1s2b1_l16s16_q2_p2_end_ticket_sm90");
  EXPECT_EQ(name_of(window(prefill)),
            "sm90_forward_bf16_d128_v128_m128n128w12c1s2b1_l16s16_q2_p2_end_begin_ticket_sm90");
  AttentionProblem right_only = prefill;
  right_only.window_right = 7;
  EXPECT_EQ(name_of(right_only), name_of(causal(prefill)));
  EXPECT_FALSE(choose_sm90_forward(prefill, h200()).forward.ticket);
}

TEST(heuristics_sm90, short_masked_prompts_of_small_heads_take_smaller_tiles) {
  EXPECT_EQ(name_of(causal(bf16_problem(16, 32, 32, 1024, 1024, 64))),
            "sm90_forward_bf16_d64_v64_m128n128w12c1s4b1_l16s16_q2_end_ticket_sm90");
  EXPECT_EQ(choose_sm90_forward(causal(bf16_problem(16, 32, 32, 1024, 1025, 64)), h200()).forward.tile_m,
            192);
  EXPECT_EQ(choose_sm90_forward(bf16_problem(16, 32, 32, 1024, 1024, 64), h200()).forward.tile_m, 192);
}

TEST(heuristics_sm90, tiles_of_few_key_blocks_have_one_set_of_probabilities) {
  const auto two = [](const AttentionProblem& problem) {
    return choose_sm90_forward(problem, h200()).forward.two_probabilities;
  };
  EXPECT_FALSE(two(bf16_problem(32, 16, 16, 512, 512, 128)));
  EXPECT_TRUE(two(bf16_problem(32, 16, 16, 512, 513, 128)));
  EXPECT_FALSE(two(causal(bf16_problem(8, 16, 16, 2048, 2048, 128))));
  EXPECT_TRUE(two(causal(bf16_problem(8, 16, 16, 2048, 2049, 128))));
  EXPECT_FALSE(two(bf16_problem(1, 32, 32, 16384, 16384, 64)));  // three warpgroups have no registers for it
  EXPECT_FALSE(two(bf16_problem(1, 8, 8, 16384, 16384, 256)));   // nor does O leave them
}

TEST(heuristics_sm90, shared_memory_and_registers_fit_at_every_head_dim) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (std::int64_t head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
      for (const std::int64_t seqlen_k : {1000, 4096}) {
        AttentionProblem problem = bf16_problem(1, 4, 2, 4096, seqlen_k, head_dim);
        problem.head_dim_v = head_dim_v;
        for (const AttentionProblem& masked : {problem, causal(problem)}) {
          const KernelSpec spec = choose_sm90_forward(masked, h200()).forward;
          EXPECT_LE(shared_bytes(spec), static_cast<std::size_t>(h200().shared_bytes_per_block))
              << kernel_name(spec);
          // O, S and P of a consumer; what else lives beside them is left to the compiler.
          const int consumers = spec.tile_m / 64;
          const int probabilities = spec.tile_n / 4 * (spec.two_probabilities ? 2 : 1);
          EXPECT_LE(spec.head_dim_v / 2 + spec.tile_n / 2 + probabilities, consumers == 2 ? 208 : 136)
              << kernel_name(spec);
        }
      }
    }
  }
}

TEST(heuristics_sm90, unmasked_tiles_are_taken_in_turn_by_as_many_blocks_as_multiprocessors) {
  const Sm90ForwardConfig large = choose_sm90_forward(bf16_problem(4, 16, 4, 4000, 4096, 128), h200());
  EXPECT_EQ(large.order.num_tiles, 32 * 4 * 16);  // 31.25 tiles of 128 rows
  EXPECT_EQ(large.grid, 132);
  EXPECT_EQ(large.order.head_group, 1);
  EXPECT_FALSE(large.order.draw_early);
  const Sm90ForwardConfig small = choose_sm90_forward(bf16_problem(1, 2, 2, 300, 300, 128), h200());
  EXPECT_EQ(small.order.num_tiles, 3 * 2);
  EXPECT_EQ(small.grid, 6) << "a block without a first tile would break the count of tickets";
}

TEST(heuristics_sm90, masked_heads_come_in_equal_groups_that_l2_holds) {
  // K and V of a head: 8192 * 256 * 2 bytes = 4 MiB; two thirds of 50 MiB hold 8.
  const Sm90ForwardConfig config =
      choose_sm90_forward(causal(bf16_problem(1, 18, 18, 8192, 8192, 128)), h200());
  EXPECT_EQ(config.order.head_group, 6) << "18 heads in three groups, where groups of 8 would leave one of 2";
  EXPECT_EQ(config.order.num_tiles, 64 * 18);
  // Query heads of a key head share it.
  EXPECT_EQ(choose_sm90_forward(causal(bf16_problem(1, 18, 9, 8192, 8192, 128)), h200()).order.head_group, 9);
}

TEST(heuristics_sm90, the_last_group_of_heads_is_filled_up) {
  const Sm90ForwardConfig config =
      choose_sm90_forward(causal(bf16_problem(1, 19, 19, 8192, 8192, 128)), h200());
  EXPECT_EQ(config.order.head_group, 7);
  EXPECT_EQ(config.order.num_tiles, 64 * 21);
}

TEST(heuristics_sm90, tickets_of_short_tiles_are_drawn_early) {
  EXPECT_TRUE(choose_sm90_forward(causal(bf16_problem(8, 16, 16, 512, 512, 128)), h200()).order.draw_early);
  EXPECT_FALSE(choose_sm90_forward(causal(bf16_problem(8, 16, 16, 513, 513, 128)), h200()).order.draw_early);
}

TEST(heuristics_sm90, another_device_is_declined_with_what_it_has) {
  EXPECT_EQ(decline_sm90_forward(plain(), h200(), 0), std::nullopt);
  EXPECT_EQ(decline_sm90_forward(plain(), testing::invented_cpu(2), 0),
            "runs on an NVIDIA GPU, and the device is a CPU");
  EXPECT_EQ(decline_sm90_forward(plain(), find_device("b200").value(), 0),
            "is for compute capability 9.0, and b200 has 10.0");
  EXPECT_EQ(decline_sm90_forward(plain(), h200(), 3), "does not split the keys");
  EXPECT_EQ(decline_sm90_forward(plain(), h200(), 1), std::nullopt);
}

TEST(heuristics_sm90, changed_scores_are_a_kernel_of_their_own_with_one_set_of_probabilities) {
  const auto spec = [](auto change) {
    AttentionProblem problem = causal(bf16_problem(1, 8, 8, 4096, 4096, 128));
    change(problem);
    EXPECT_EQ(decline_sm90_forward(problem, h200(), 0), std::nullopt);
    return choose_sm90_forward(problem, h200()).forward;
  };
  using P = AttentionProblem;
  const KernelSpec plain = spec([](P&) {});
  EXPECT_FALSE(plain.score_terms);
  EXPECT_TRUE(plain.two_probabilities);
  for (const KernelSpec& changed :
       {spec([](P& p) { p.softcap = 30; }), spec([](P& p) { p.has_alibi = true; }),
        spec([](P& p) { p.has_bias = true; }), spec([](P& p) { p.softmax_scale = -0.5; }),
        spec([](P& p) { p.softmax_scale = 1e-60; })}) {  // 0 in f32
    EXPECT_TRUE(changed.score_terms);
    EXPECT_FALSE(changed.two_probabilities);
  }
}

TEST(heuristics_sm90, pages_of_eights_are_taken) {
  AttentionProblem problem = causal(bf16_problem(2, 8, 8, 512, 4096, 128));
  problem.k_layout = SequenceLayout::Paged;
  problem.page_size = 24;
  EXPECT_EQ(decline_sm90_forward(problem, h200(), 0), std::nullopt);
  EXPECT_TRUE(choose_sm90_forward(problem, h200()).forward.paged);
}

TEST(heuristics_sm90, what_the_family_cannot_do_is_said) {
  const auto reason = [](auto change) {
    AttentionProblem problem = plain();
    change(problem);
    return decline_sm90_forward(problem, h200(), 0);
  };
  using P = AttentionProblem;
  EXPECT_EQ(reason([](P& p) { p.q_dtype = DType::F32; }), "takes f16 and bf16, and q is f32");
  EXPECT_EQ(reason([](P& p) { p.kv_dtype = DType::F8E4M3; }),
            "takes k and v in q's dtype, and they are f8e4m3");
  EXPECT_EQ(reason([](P& p) { p.has_k_descale = true; }), "takes no descale factors");
  EXPECT_EQ(reason([](P& p) { p.has_v_descale = true; }), "takes no descale factors");
  EXPECT_EQ(reason([](P& p) {
              p.k_layout = SequenceLayout::Paged;
              p.page_size = 20;
            }),
            "takes pages of a multiple of 8 keys, and they have 20");
  EXPECT_THAT(reason([](P& p) { p.head_dim = 264; }),
              Optional(HasSubstr("in steps of 8, and they are 264 and 128")));
  EXPECT_THAT(reason([](P& p) { p.head_dim_v = 100; }), Optional(HasSubstr("they are 128 and 100")));
  EXPECT_EQ(reason([](P& p) { p.seqlen_q = 63; }), "is for 64 query rows and more, and there are 63");
  EXPECT_EQ(reason([](P& p) { p.total_q = 0; }), "needs queries, and there are none");
  EXPECT_EQ(reason([](P& p) { p.total_k = 0; }), "needs keys, and there are none");
  EXPECT_EQ(reason([](P& p) { p.total_k = std::int64_t{1} << 30; }), "counts rows in 30 bits");
  EXPECT_EQ(reason([](P& p) { p.batch = std::int64_t{1} << 20; }), "counts tiles in 31 bits");
}

TEST(heuristics_sm90, strides_that_no_tensor_map_describes_are_named) {
  constexpr std::pair<const char*, TensorStrides AttentionProblem::*> kTensors[] = {
      {"q", &AttentionProblem::q},
      {"k", &AttentionProblem::k},
      {"v", &AttentionProblem::v},
      {"out", &AttentionProblem::out}};
  for (const auto& [name, member] : kTensors) {
    const std::string reason =
        std::string("needs strides of ") + name + " that are positive multiples of 16 bytes";
    for (const std::int64_t stride : {0, -4096, 4100}) {
      AttentionProblem problem = plain();
      (problem.*member).row = stride;
      EXPECT_THAT(decline_sm90_forward(problem, h200(), 0), Optional(HasSubstr(reason))) << stride;
    }
    AttentionProblem problem = plain();
    (problem.*member).dim = 2;
    EXPECT_THAT(decline_sm90_forward(problem, h200(), 0), Optional(HasSubstr(reason)));
    problem = plain();
    (problem.*member).head = std::int64_t{1} << 39;  // 2^40 bytes
    EXPECT_THAT(decline_sm90_forward(problem, h200(), 0), Optional(HasSubstr(reason)));
  }
}

TEST(heuristics_sm90, sequences_of_their_own_lengths_have_tiles_counted_on_the_device) {
  AttentionProblem packed = packed_problem(3, 2, 2, 4096, 4096, 6000, 6000, 128);
  packed.q = packed.k = packed.v = packed.out = {0, 256, 128, 1};
  const Sm90ForwardConfig full = choose_sm90_forward(packed, h200());
  EXPECT_EQ(kernel_name(full.forward),
            "sm90_forward_bf16_d128_v128_m128n128w12c1s2b1_l16s16_q2_p2_ticket_ragged_sm90");
  EXPECT_EQ(full.order.num_tiles, 4096 / 128 * 3 * 2);  // as many as there can be
  EXPECT_EQ(full.order.head_group, 1);
  const KernelSpec masked = choose_sm90_forward(causal(packed), h200()).forward;
  EXPECT_TRUE(masked.ragged && masked.ticket && masked.mask_end);

  AttentionProblem dense = bf16_problem(3, 2, 2, 4096, 4096, 128);
  EXPECT_FALSE(choose_sm90_forward(dense, h200()).forward.ragged);
  dense.has_seqused_q = true;
  EXPECT_TRUE(choose_sm90_forward(dense, h200()).forward.ragged);
}

TEST(heuristics_sm90, strides_of_single_elements_are_nobodys_business) {
  AttentionProblem problem = bf16_problem(1, 1, 1, 512, 512, 128);
  problem.q.batch = problem.k.head = 3;
  EXPECT_EQ(decline_sm90_forward(problem, h200(), 0), std::nullopt);
  AttentionProblem packed = packed_problem(3, 2, 2, 512, 1000, 512, 1000, 128);
  packed.q = packed.k = packed.v = packed.out = {0, 256, 128, 1};  // packed rows have no batch stride
  EXPECT_EQ(decline_sm90_forward(packed, h200(), 0), std::nullopt);
}

}  // namespace
}  // namespace onepass
