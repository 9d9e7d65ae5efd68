// With the real compiler, and no GPU.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/heuristics_decode.h"
#include "dispatch/heuristics_sm80_backward.h"
#include "dispatch/heuristics_sm90.h"
#include "dispatch/heuristics_sm90_backward.h"
#include "onepass/error.h"
#include "plan/common_kernels.h"
#include "plan/cuda_plan.h"
#include "store/nvrtc.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

KernelSpec small_spec(KernelFamily family = KernelFamily::MergeSplits) {
  KernelSpec spec;
  spec.family = family;
  spec.head_dim = spec.head_dim_v = 64;
  return spec;
}

class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Nvrtc::instance() == nullptr) GTEST_SKIP() << Nvrtc::missing_reason();
  }
  const Nvrtc& nvrtc() { return *Nvrtc::instance(); }
};

TEST_F(NvrtcTest, compiles_to_machine_code_with_known_resources) {
  const CompiledKernel kernel = nvrtc().compile(small_spec());
  EXPECT_THAT(kernel.image, StartsWith("\x7f"
                                       "ELF"));
  EXPECT_THAT(kernel.image, HasSubstr(kernel_name(small_spec())));
  EXPECT_GT(kernel.resources.registers, 0);
  EXPECT_EQ(over_budget(small_spec(), kernel.resources), std::nullopt);
}

TEST_F(NvrtcTest, compiles_to_ptx_for_later_gpus) {
  const CompiledKernel kernel = nvrtc().compile_ptx(small_spec());
  EXPECT_THAT(kernel.image, HasSubstr(".target sm_80"));
  EXPECT_THAT(kernel.image, HasSubstr(".entry " + kernel_name(small_spec())));
}

TEST_F(NvrtcTest, the_same_spec_gives_the_same_image) {
  EXPECT_EQ(nvrtc().compile(small_spec()).image, nvrtc().compile(small_spec()).image);
}

TEST_F(NvrtcTest, a_failure_shows_kernel_options_first_error_and_where_the_source_is) {
  KernelSpec spec = small_spec(KernelFamily::Sm80Forward);
  spec.tile_m = spec.tile_n = 64;
  spec.num_warps = 0;  // no such tile
  try {
    nvrtc().compile(spec);
    FAIL() << "it compiled";
  } catch (const EnvironmentError& error) {
    const std::string text = error.what();
    EXPECT_THAT(text, HasSubstr(kernel_name(spec)));
    EXPECT_THAT(text, HasSubstr("--gpu-architecture=sm_80 -std=c++20"));
    EXPECT_THAT(text, HasSubstr("error: "));
    EXPECT_THAT(text, HasSubstr("\n  Allowed: "));
    const std::size_t begin = text.find("source kept: ") + 13;
    std::ifstream kept(text.substr(begin, text.find(')', begin) - begin));
    ASSERT_TRUE(kept) << text;
    const std::string source{std::istreambuf_iterator<char>(kept), std::istreambuf_iterator<char>()};
    EXPECT_THAT(source, HasSubstr("sm80/forward.cuh"));
  }
}

TEST_F(NvrtcTest, an_architecture_it_does_not_know_is_a_failure_with_that_reason) {
  KernelSpec spec = small_spec();
  spec.architecture = 70007;
  try {
    nvrtc().compile(spec);
    FAIL() << "it compiled";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--gpu-architecture"));
    EXPECT_THAT(error.what(), HasSubstr("use a newer NVRTC"));
  }
}

TEST_F(NvrtcTest, threads_compile_side_by_side) {
  std::vector<std::string> images(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < images.size(); ++i) {
    threads.emplace_back([&, i] {
      KernelSpec spec = small_spec();
      spec.head_dim_v = 64 * static_cast<int>(i + 1);
      images[i] = nvrtc().compile(spec).image;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < images.size(); ++i) {
    KernelSpec spec = small_spec();
    spec.head_dim_v = 64 * static_cast<int>(i + 1);
    EXPECT_THAT(images[i], HasSubstr(kernel_name(spec)));
  }
}

// `make bundle` compiles all of them; here the smallest of each family stand for the rest.
TEST_F(NvrtcTest, kernels_of_every_family_keep_to_their_budgets) {
  std::vector<KernelFamily> seen;
  for (const CommonKernel& kernel : common_kernels()) {
    if (kernel.kind == ImageKind::Ptx ||
        std::find(seen.begin(), seen.end(), kernel.spec.family) != seen.end()) {
      continue;
    }
    seen.push_back(kernel.spec.family);
    EXPECT_EQ(over_budget(kernel.spec, nvrtc().compile(kernel.spec).resources), std::nullopt)
        << kernel_name(kernel.spec);
  }
  EXPECT_GE(seen.size(), 4u);
}

// Score terms need registers of their own, wide heads most of them; sinks and bias have kernels of their own.
TEST_F(NvrtcTest, gradients_that_no_bundle_holds_keep_to_their_budgets) {
  for (const std::int64_t head_dim : {128, 256}) {
    AttentionProblem problem = testing::bf16_problem(1, 4, 4, 512, 512, head_dim);
    problem.softcap = 20;
    problem.has_bias = true;
    problem.gradient = {.has_dbias = true,
                        .dbias_shape = {1, 1, 512, 512},
                        .dout = problem.q,
                        .dq = problem.q,
                        .dk = problem.k,
                        .dv = problem.k};
    const Sm80BackwardConfig config = choose_sm80_backward(problem, *find_device("a100"));
    for (const KernelSpec& spec : {config.keys, config.queries, config.bias}) {
      EXPECT_EQ(over_budget(spec, nvrtc().compile(spec).resources), std::nullopt) << kernel_name(spec);
    }
  }
  const KernelSpec sinks = small_spec(KernelFamily::BackwardSinks);
  EXPECT_EQ(over_budget(sinks, nvrtc().compile(sinks).resources), std::nullopt);
}

// What the bundle lacks: rests of a width, bounds on both sides in f16, 96 keys, a tile for wide values.
TEST_F(NvrtcTest, hopper_kernels_that_no_bundle_holds_keep_to_their_budgets) {
  struct Shape {
    std::int64_t head_dim, head_dim_v;
    DType dtype;
  };
  for (const Shape& shape :
       {Shape{40, 24, DType::BF16}, {128, 128, DType::F16}, {192, 192, DType::BF16}, {64, 256, DType::F16}}) {
    AttentionProblem problem = testing::bf16_problem(1, 4, 4, 4096, 4096, shape.head_dim);
    problem.head_dim_v = shape.head_dim_v;
    problem.q_dtype = problem.kv_dtype = shape.dtype;
    problem.causal = Causal::BottomRight;
    problem.window_left = shape.head_dim <= 128 && shape.head_dim_v <= 128 ? 100 : -1;
    const KernelSpec spec = choose_sm90_forward(problem, *find_device("h200")).forward;
    EXPECT_EQ(over_budget(spec, nvrtc().compile(spec).resources), std::nullopt) << kernel_name(spec);
  }
}

TEST_F(NvrtcTest, hopper_backward_kernels_keep_to_their_budgets) {
  for (const std::int64_t head_dim : {40, 64, 96, 128, 192, 256}) {
    for (const std::int64_t window_left : {-1, 100}) {
      for (const Causal mask : {Causal::None, Causal::BottomRight}) {
        AttentionProblem problem = testing::bf16_problem(1, 4, 4, 4096, 4096, head_dim);
        if (head_dim == 192) problem.head_dim_v = 128;
        problem.gradient = {.dout = problem.out, .dq = problem.q, .dk = problem.k, .dv = problem.v};
        problem.causal = mask;
        problem.window_left = window_left;
        const Sm90BackwardConfig config = choose_sm90_backward(problem, *find_device("h200"));
        for (const KernelSpec& spec : {config.prepare, config.backward, config.finish})
          EXPECT_EQ(over_budget(spec, nvrtc().compile(spec).resources), std::nullopt) << kernel_name(spec);
      }
    }
  }
}

// Of each head_dim the most rows, with and without score terms.
TEST_F(NvrtcTest, decode_kernels_that_no_bundle_holds_keep_to_their_budgets) {
  for (const std::int64_t head_dim : {16, 64, 96, 128, 192, 256}) {
    for (const double softcap : {0.0, 20.0}) {
      AttentionProblem problem = testing::bf16_problem(1, 32, 1, 1, 4096, head_dim);
      problem.softcap = softcap;
      problem.k_layout = SequenceLayout::Paged;
      problem.page_size = 16;
      const KernelSpec spec = choose_sm90_decode(problem, *find_device("h200"), 2).decode;
      EXPECT_EQ(over_budget(spec, nvrtc().compile(spec).resources), std::nullopt) << kernel_name(spec);
    }
  }
}

// Two warps more beside the most rows; 16 bits, and 8 of the largest tiles.
TEST_F(NvrtcTest, decode_kernels_that_gather_keys_keep_to_their_budgets) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const DType stored : {DType::BF16, DType::I8}) {
      for (const std::int64_t batch : {1, 64}) {
        AttentionProblem problem = testing::bf16_problem(batch, 32, 1, 1, 8192, head_dim);
        problem.kv_dtype = stored;
        problem.k_layout = SequenceLayout::Paged;
        problem.page_size = 1;
        problem.has_seqused_k = true;
        const KernelSpec spec = choose_sm90_decode(problem, *find_device("h200"), 0).decode;
        EXPECT_TRUE(spec.gather);
        EXPECT_EQ(over_budget(spec, nvrtc().compile(spec).resources), std::nullopt) << kernel_name(spec);
      }
    }
  }
}

// By boxes and key by key, of the most rows; a tile of a problem's own and blocks that stay.
TEST_F(NvrtcTest, decode_kernels_with_factors_of_pages_keep_to_their_budgets) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const DType stored : {DType::F8E4M3, DType::I8}) {
      for (const std::int64_t page_size : {16, 1}) {
        for (const std::int64_t batch : {1, 64}) {
          AttentionProblem problem = testing::bf16_problem(batch, 32, 1, 1, 8192, head_dim);
          problem.kv_dtype = stored;
          problem.k_layout = SequenceLayout::Paged;
          problem.page_size = page_size;
          problem.has_seqused_k = true;
          problem.has_k_descale = problem.has_v_descale = true;
          problem.k_descale_per_page = problem.v_descale_per_page = true;
          const KernelSpec spec = choose_sm90_decode(problem, *find_device("h200"), 0).decode;
          EXPECT_TRUE(spec.page_factors);
          EXPECT_EQ(over_budget(spec, nvrtc().compile(spec).resources), std::nullopt) << kernel_name(spec);
        }
      }
    }
  }
}

TEST_F(NvrtcTest, append_kernels_keep_to_their_budgets_on_sm80_and_sm90) {
  for (const int architecture : {80, 90}) {
    for (const DType dtype : {DType::F16, DType::BF16}) {
      for (const DType stored : {dtype, DType::F8E4M3, DType::F8E5M2, DType::I8}) {
        for (const int load_bytes : {16, 2}) {
          const KernelSpec spec = append_kv_kernel(architecture, dtype, stored, load_bytes);
          EXPECT_EQ(over_budget(spec, nvrtc().compile(spec).resources), std::nullopt) << kernel_name(spec);
        }
      }
    }
  }
}

TEST_F(NvrtcTest, the_merge_of_states_and_the_baseline_keep_to_their_budgets_on_sm80_and_sm90) {
  for (const KernelFamily family : {KernelFamily::MergeStates, KernelFamily::NaiveScores,
                                    KernelFamily::NaiveSoftmax, KernelFamily::NaiveValues}) {
    for (const int architecture : {80, 90}) {
      KernelSpec spec;
      spec.family = family;
      spec.architecture = architecture;
      spec.dtype = DType::F16;
      spec.num_warps = family == KernelFamily::MergeStates ? 4 : 8;
      EXPECT_EQ(over_budget(spec, nvrtc().compile(spec).resources), std::nullopt) << kernel_name(spec);
    }
  }
}

}  // namespace
}  // namespace onepass
