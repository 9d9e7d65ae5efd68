// What must hold for any numbers: equal bits where only memory differs, symmetries of the formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/make_plan.h"
#include "problem/validate.h"
#include "tests/cpu/call.h"
#include "tests/cpu/sizes.h"
#include "verify/case_tensors.h"

namespace onepass {
namespace {

struct Bits {
  std::vector<unsigned char> out, lse;  // row-major
  bool operator==(const Bits&) const = default;
};

std::vector<unsigned char> row_major_bytes(const TensorView& view) {
  const HostTensor copy(view.dtype, {view.shape.begin(), view.shape.begin() + view.rank},
                        [&](std::span<const std::int64_t> idx) {
                          std::int64_t offset = 0;
                          for (std::size_t d = 0; d < idx.size(); ++d) offset += idx[d] * view.strides[d];
                          return load_float(view.data, view.dtype, offset);
                        });
  return bytes_of(copy.view());
}

Bits bits_of(const Target& target, verify::CaseTensors& tensors) {
  tensors.poison_outputs();
  run_on(target, tensors.args, tensors.options);
  EXPECT_EQ(tensors.damage(), std::nullopt);
  return {row_major_bytes(tensors.args.out), row_major_bytes(tensors.args.softmax_lse)};
}

verify::CaseTensors tensors_of(DType dtype, const std::string& text, int num_threads = 2) {
  verify::CaseTensors tensors = verify::make_tensors(parse_case(std::string(dtype_name(dtype)) + "_" + text));
  tensors.options.num_threads = num_threads;
  return tensors;
}

const std::vector<std::string> shape_texts = {
    "b2_hq2_hk1_sq70_sk150_d40_causal_seed1", "b3_hq8_hk2_sq1_sk300_d64_seed2",
    "b2_hq3_hk3_sq5_sk129_d17_wl40_wr9_seed3",
    "b2_hq4_hk1_sq33_sk65_d128_dv32_softcap20_alibi_sink_causal_seed4"};

/// Which kernels the GPU of this machine takes for a case; nothing without one.
std::string gpu_implementation(const verify::CaseTensors& tensors) {
  if (!target_wanted(Backend::Cuda)) return "";
  AttentionProblem problem = validate_problem("test", tensors.args, tensors.options);
  if (problem.q_dtype == DType::F32 || problem.k.dim != 1) return "";
  problem.memory = DeviceKind::Cuda;
  return make_plan("test", problem, {Backend::Cuda, 0, tensors.options.num_splits}, cuda::device_info(0))
      .implementation;
}

TEST(property, memory_orders_and_layouts_of_the_same_numbers_give_equal_bits) {
  for (const DType dtype : kFloatTypes) {
    for (const std::string& shape : shape_texts) {
      verify::CaseTensors dense = tensors_of(dtype, shape + "_split1");
      std::vector<Bits> want;
      for (const Target& target : targets({dtype})) want.push_back(bits_of(target, dense));
      const std::string kernels = gpu_implementation(dense);
      for (const char* variant :
           {"bhsd", "qkvpacked", "dimstride2", "reversed", "nopoison", "maxlen", "packedk", "packedk_gap",
            "page64", "page16", "page5", "page1", "page16_bhsd", "page7_qkvpacked"}) {
        verify::CaseTensors tensors = tensors_of(dtype, shape + "_split1_" + variant);
        std::size_t n = 0;
        for (const Target& target : targets({dtype})) {
          const Bits& same = want[n++];
          // A GPU takes stride 1 only, and another family of kernels adds up in another order.
          if (target.on_gpu() &&
              (std::string_view(variant) == "dimstride2" || gpu_implementation(tensors) != kernels)) {
            continue;
          }
          EXPECT_TRUE(same == bits_of(target, tensors)) << target.name() << " " << shape << " " << variant;
        }
      }
    }
  }
}

TEST(property, key_heads_that_a_thread_takes_together_give_the_bits_that_they_give_alone) {
  on_every_target([](const Target& target) {
    for (const char* shape : {"b1_hq8_hk4_sq1_sk700_d64_split2_seed5", "b2_hq9_hk3_sq2_sk300_d40_wl70_split1",
                              "b1_hq4_hk4_sq3_sk200_d128_dv17_causal_page16_split1"}) {
      std::optional<Bits> together;
      for (const int num_threads : {1, 2, 16}) {  // with more threads, fewer heads
        verify::CaseTensors tensors = tensors_of(target.dtype, shape, num_threads);
        const Bits bits = bits_of(target, tensors);
        if (!together) together = bits;
        EXPECT_TRUE(bits == *together) << shape << " on " << num_threads << " threads";
      }
    }
  });
}

TEST(property, a_run_repeated_gives_the_same_bits) {
  on_every_target([](const Target& target) {
    for (const std::string& shape : shape_texts) {
      for (const char* splits : {"", "_split3"}) {
        verify::CaseTensors tensors = tensors_of(target.dtype, shape + splits, 4);
        const Bits first = bits_of(target, tensors);
        for (int n = 0; n < full_or_sanitized(3, 1); ++n)
          EXPECT_TRUE(first == bits_of(target, tensors)) << shape << splits;
      }
    }
  });
}

TEST(property, equal_sequences_and_equal_groups_of_heads_give_equal_bits) {
  on_every_target([](const Target& target) {
    Call call;
    const auto same_everywhere = [&](std::int64_t length, std::int64_t heads, std::int64_t seed) {
      const HostTensor one(target.dtype, {length, 24}, noise(seed));
      return call.keep(HostTensor(target.dtype, {3, length, heads, 24}, [&](auto idx) {
        return one.get({idx[1], idx[3]});
      }));
    };
    call.args.q = same_everywhere(37, 6, 1);
    call.args.k = same_everywhere(150, 2, 2);
    call.args.v = same_everywhere(150, 2, 3);
    call.options.causal = Causal::BottomRight;
    call.run(target);
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t h = 0; h < 6; ++h) {
        for (std::int64_t i = 0; i < 37; ++i) {
          EXPECT_EQ(call.lse({b, h, i}), call.lse({0, h % 3, i}));
          for (std::int64_t d = 0; d < 24; ++d)
            ASSERT_EQ(call.out({b, i, h, d}), call.out({0, i, h % 3, d})) << b << h << i << d;
        }
      }
    }
  });
}

TEST(property, the_order_of_keys_does_not_matter_without_a_mask) {
  on_every_target([](const Target& target) {
    Call call;
    for (auto [view, length, seed] :
         {std::tuple{&call.args.q, 9, 1}, {&call.args.k, 140, 2}, {&call.args.v, 140, 3}}) {
      *view = call.keep(HostTensor(target.dtype, {1, length, 2, 16}, noise(seed)));
    }
    const verify::Evaluation& evaluation = evaluate_once(call.args, call.options);
    std::vector<std::int64_t> order(140);
    std::iota(order.begin(), order.end(), 0);
    verify::Random random{8};
    for (std::size_t n = order.size(); n > 1; --n) {
      std::swap(order[n - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(n)))]);
    }
    for (TensorView* view : {&call.args.k, &call.args.v}) {
      *view = call.keep(HostTensor(target.dtype, {1, 140, 2, 16}, [&, from = *view](auto idx) {
        return Call::element(from, {0, order[static_cast<std::size_t>(idx[1])], idx[2], idx[3]});
      }));
    }
    call.allocate_outputs();
    run_on(target, call.args, call.options);
    const verify::CheckReport report =
        verify::judge(call.args, evaluation);  // of the keys in their first order
    EXPECT_TRUE(report.passed) << report.text();
  });
}

TEST(property, a_constant_added_to_every_score_moves_the_lse_and_nothing_else) {
  on_every_target([](const Target& target) {
    Call call;
    for (auto [view, seed] : {std::pair{&call.args.q, 1}, {&call.args.k, 2}, {&call.args.v, 3}}) {
      *view = call.keep(HostTensor(target.dtype, {1, 80, 1, 16}, noise(seed)));
    }
    call.options.causal = Causal::BottomRight;
    call.run(target);
    Call moved;
    moved.args = call.args;
    moved.options = call.options;
    moved.args.bias = moved.keep(HostTensor(DType::F32, {1, 1, 80, 80}, constant(8)));
    moved.run(target);
    for (std::int64_t i = 0; i < 80; ++i) {
      EXPECT_NEAR(moved.lse({0, 0, i}), call.lse({0, 0, i}) + 8, 1e-5);
      for (std::int64_t d = 0; d < 16; ++d) {
        EXPECT_NEAR(moved.out({0, i, 0, d}), call.out({0, i, 0, d}), 1e-5 + 4 * target.rounding());
      }
    }
  });
}

TEST(property, any_number_of_splits_stays_within_the_bound) {
  for (const char* shape :
       {"b2_hq4_hk2_sq3_sk900_d24_dv13_causal_sink_seed5", "b1_hq3_hk1_sq70_sk700_d64_dv65_wl300_seed6",
        "b3_hq2_sq1_sk1111_d40_packed_ragged_gap_seed7", "b2_hq8_hk1_sq2_sk600_d17_page16_alibi_seed8"}) {
    constexpr std::array kSplits = {3, 64, 2, 5, 1024};
    for (const int splits : std::span(kSplits).first(full_or_sanitized(5, 2))) {
      check_on_targets(kFloatTypes, std::string(shape) + "_split" + std::to_string(splits), 3);
    }
  }
}

}  // namespace
}  // namespace onepass
