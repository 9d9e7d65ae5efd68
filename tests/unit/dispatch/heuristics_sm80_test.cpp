#include "dispatch/heuristics_sm80.h"

#include <gmock/gmock.h>

#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::bf16_problem;

std::string name_on(const char* device, const AttentionProblem& problem) {
  return kernel_name(choose_sm80_forward(problem, *find_device(device), 0).forward);
}

TEST(heuristics_sm80, long_prefill_takes_the_measured_tile_of_its_head_dim) {
  EXPECT_EQ(name_on("h200", bf16_problem(4, 32, 32, 4096, 4096, 64)),
            "sm80_forward_bf16_d64_v64_m128n128w4c1s1b2_l16s16_sm90");
  EXPECT_EQ(name_on("h200", bf16_problem(4, 16, 16, 4096, 4096, 128)),
            "sm80_forward_bf16_d128_v128_m128n64w4c1s1b2_l16s16_sm90");
  EXPECT_EQ(name_on("h200", bf16_problem(4, 8, 8, 4096, 4096, 256)),
            "sm80_forward_bf16_d256_v256_m64n64w4c1s1b2_l16s16_sm90");
}

TEST(heuristics_sm80, a_decode_step_packs_the_group_and_splits_the_keys) {
  const Sm80ForwardConfig config =
      choose_sm80_forward(bf16_problem(1, 32, 8, 1, 32768, 128), *find_device("h200"), 0);
  EXPECT_TRUE(config.forward.pack_gqa);
  EXPECT_TRUE(config.forward.split);
  EXPECT_EQ(config.num_splits, 33);  // 264 resident blocks over 8 key heads
  EXPECT_EQ(config.grid, 8 * 33);
}

TEST(heuristics_sm80, odd_head_dims_are_read_in_the_pieces_that_their_rows_allow) {
  EXPECT_EQ(
      choose_sm80_forward(bf16_problem(1, 1, 1, 64, 64, 63), *find_device("a100"), 0).forward.load_bytes, 2);
  EXPECT_EQ(
      choose_sm80_forward(bf16_problem(1, 1, 1, 64, 64, 72), *find_device("a100"), 0).forward.load_bytes, 16);
  EXPECT_EQ(
      choose_sm80_forward(bf16_problem(1, 1, 1, 64, 64, 36), *find_device("a100"), 0).forward.load_bytes, 8);
  EXPECT_EQ(
      choose_sm80_forward(bf16_problem(1, 1, 1, 64, 64, 36), *find_device("a100"), 0).forward.store_bytes, 4);
}

TEST(heuristics_sm80, shared_memory_fits_every_device_at_every_head_dim) {
  for (const char* device : {"a100", "h100", "l40s", "rtx4090", "b200"}) {
    const DeviceInfo info = *find_device(device);
    for (std::int64_t head_dim = 1; head_dim <= 576; ++head_dim) {
      for (const std::int64_t seqlen_q : {1, 64, 4096}) {
        for (const std::int64_t head_dim_v :
             {std::min<std::int64_t>(head_dim, 512), std::int64_t{128}, std::int64_t{512}}) {
          AttentionProblem problem = bf16_problem(1, 4, 2, seqlen_q, 1024, head_dim);
          problem.head_dim_v = head_dim_v;
          const KernelSpec spec = choose_sm80_forward(problem, info, 0).forward;
          EXPECT_LE(shared_bytes(spec), static_cast<std::size_t>(info.shared_bytes_per_block))
              << device << " " << kernel_name(spec);
        }
      }
    }
  }
}

TEST(heuristics_sm80, what_the_family_cannot_do_is_said) {
  const DeviceInfo h200 = *find_device("h200");
  AttentionProblem problem = bf16_problem(1, 2, 2, 64, 64, 128);
  EXPECT_EQ(decline_sm80_forward(problem, h200, 0), std::nullopt);
  problem.k.dim = 2;
  EXPECT_EQ(decline_sm80_forward(problem, h200, 0), "needs stride 1 in the last dimension, and k has 2");
  problem = bf16_problem(1, 2, 2, 64, 64, 600);
  EXPECT_THAT(*decline_sm80_forward(problem, h200, 0), ::testing::HasSubstr("head_dim up to 576"));
  problem = bf16_problem(1, 2, 2, 64, 64, 128);
  problem.kv_dtype = DType::F8E4M3;
  EXPECT_EQ(decline_sm80_forward(problem, h200, 0), "takes k and v in q's dtype, and they are f8e4m3");
  problem.kv_dtype = DType::BF16;
  DeviceInfo turing = h200;
  turing.name = "turing";
  turing.compute_capability = 75;
  EXPECT_EQ(decline_sm80_forward(problem, turing, 0), "needs compute capability 8.0, and turing has 7.5");
}

TEST(heuristics_sm80, a_grid_of_31_bits_holds_the_tiles_times_the_splits) {
  const DeviceInfo a100 = *find_device("a100");
  const AttentionProblem long_prompts = bf16_problem(16, 64, 8, 1 << 16, 1 << 16, 128);
  EXPECT_EQ(decline_sm80_forward(long_prompts, a100, 0), std::nullopt)
      << "a million tiles of 64 rows or more";
  const AttentionProblem many = bf16_problem(1 << 18, 8, 8, 1, 64, 64);
  EXPECT_EQ(decline_sm80_forward(many, a100, 1023), std::nullopt);
  EXPECT_EQ(decline_sm80_forward(many, a100, 1024), "has more work than one grid holds");
}

}  // namespace
}  // namespace onepass
