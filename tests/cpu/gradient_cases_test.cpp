// Inputs that broke the gradients of other libraries, on every implementation.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cpu/gradient_call.h"

namespace onepass {
namespace {

void expect_all(const TensorView& view, double value, double near = 0) {
  verify::each_element(view, [&](std::size_t n, auto, double got) { EXPECT_NEAR(got, value, near) << n; });
}

GradientCall uniform_gradient_call(const Target& target, const Sizes& sizes) {
  GradientCall call(uniform_call(target, sizes));
  call.fill_dout(constant(1));
  return call;
}

TEST(gradient_cases, r08_only_rows_that_see_a_key_have_gradients) {
  on_every_target([](const Target& target) {
    GradientCall call{Call{}};
    call.args.q = call.keep(HostTensor(target.dtype, {256, 1, 32}, noise(1)));
    call.args.k = call.keep(HostTensor(target.dtype, {3, 1, 32}, noise(2)));
    call.args.v = call.keep(HostTensor(target.dtype, {3, 1, 32}, constant(2)));
    call.args.cu_seqlens_q = call.keep(HostTensor({0, 76, 110, 256}));
    call.args.cu_seqlens_k = call.keep(HostTensor({0, 1, 2, 3}));
    call.options.causal = Causal::BottomRight;
    call.fill_dout(constant(1));
    call.run_gradients(target);
    expect_all(call.backward.dq, 0, 1e-6);
    expect_all(call.backward.dk, 0, 1e-6);
    expect_all(call.backward.dv, 1, target.near(1));
  });
}

TEST(gradient_cases, batch_invariant_calls_have_them_too) {
  for (const char* shape : {"b2_hq4_hk2_sq200_sk210_d16_causal_sink_invariant_bwd",
                            "b2_hq4_hk2_sq90_sk80_d32_bias11_invariant_bwd",
                            "b40_hq8_hk8_sq70_sk70_d16_packed_ragged_invariant_bwd_seed2"})
    check_on_targets({DType::F32, DType::BF16}, shape);
}

TEST(gradient_cases, r12_nothing_to_sum_is_zero) {
  check_on_targets({DType::F32, DType::F16, DType::BF16}, "b4_hq2_sq5_sk7_d64_packed_ragged_bwd_seed2");
  for (const char* shape : {"b0_hq2_sq5_sk7", "b2_hq2_sq0_sk7", "b2_hq2_sq5_sk0", "b3_hq2_sq0_sk0"}) {
    for (const char* dim : {"d64", "d128", "d256", "d512"}) {
      check_on_targets({DType::F32, DType::BF16}, std::string(shape) + "_" + dim + "_bwd");
      check_on_targets({DType::BF16}, std::string(shape) + "_" + dim + "_packed_bwd_sink");
    }
  }
}

TEST(gradient_cases, r15_a_saturated_softcap_passes_nothing_on) {
  on_every_target([](const Target& target) {
    GradientCall call{Call{}};
    call.args.q = call.keep(HostTensor(target.dtype, {1, 1, 1, 1}, constant(50)));
    call.args.k = call.keep(
        HostTensor(target.dtype, {1, 2, 1, 1}, [](auto idx) { return idx[1] == 0 ? 100.0 : 200.0; }));
    call.args.v = call.keep(HostTensor(target.dtype, {1, 2, 1, 1}, row_number(1)));
    call.options.softmax_scale = 1.0;
    call.options.softcap = 50;
    call.fill_dout(constant(1));
    call.run_gradients(target);
    expect_rows(call, target, {1.5}, {50.693147181});
    expect_all(call.backward.dq, 0, 1e-5);
    expect_all(call.backward.dk, 0, 1e-5);
    expect_all(call.backward.dv, 0.5, target.near(0.5) + 4e-6);
  });
}

TEST(gradient_cases, r24_rows_of_no_sequence_get_gradients_of_zero) {
  on_every_target([](const Target& target) {
    constexpr std::int64_t kRows = 946, kOwned = 944;
    GradientCall call{Call{}};
    const auto padded_noise = [&](std::int64_t seed) {
      return [values = noise(seed)](std::span<const std::int64_t> idx) mutable {
        const double x = values(idx);
        return idx[0] < kOwned ? x : static_cast<double>(kNan);
      };
    };
    const std::int64_t heads = target.backend == Backend::Reference ? 1 : 16;  // which takes seconds for one
    const HostTensor::Shape shape{kRows, heads, 64};
    call.args.q = call.keep(HostTensor(target.dtype, shape, padded_noise(1)));
    call.args.k = call.keep(HostTensor(target.dtype, shape, padded_noise(2)));
    call.args.v = call.keep(HostTensor(target.dtype, shape, padded_noise(3)));
    call.args.cu_seqlens_q = call.args.cu_seqlens_k = call.keep(HostTensor({0, 144, 432, kOwned}));
    call.fill_dout(padded_noise(4));
    call.run_gradients(target);
    for (const TensorView* view : {&call.backward.dq, &call.backward.dk, &call.backward.dv}) {
      verify::each_element(*view, [&](std::size_t n, auto idx, double got) {
        const bool right = idx[0] < kOwned ? std::isfinite(got) : got == 0;
        EXPECT_TRUE(right) << n << " is " << got;
      });
    }
  });
  for (const char* text : {"b3_hq2_sq8_d64_packed_ragged_gap_bwd_seed2",
                           "b5_hq4_hk2_sq20_sk30_d64_packed_ragged_gap_causal_bwd_sink_seed4"}) {
    check_on_targets({DType::F32, DType::F16, DType::BF16}, text);
  }
}

TEST(gradient_cases, r26_dout_is_read_by_its_own_strides) {
  on_every_target([](const Target& target) {
    const auto gradients = [&](bool expanded, bool exchanged) {
      GradientCall call(uniform_call(
          target, {.seqlen_q = 32, .seqlen_k = 32, .num_heads_q = 4, .head_dim = 128, .head_dim_v = 128}));
      call.args.q = call.keep(HostTensor(target.dtype, {1, 32, 4, 128}, noise(3)));
      call.fill_dout(constant(1));
      TensorView& dout = call.backward.dout;
      if (expanded) dout.strides = {};
      if (exchanged) {
        dout = transpose(call.keep(HostTensor(target.dtype, {1, 4, 32, 128}, constant(1))), 1, 2);
      }
      call.run_gradients(target);
      std::vector<std::vector<unsigned char>> bytes;
      for (const TensorView* view : {&call.backward.dq, &call.backward.dk, &call.backward.dv})
        bytes.push_back(bytes_of(*view));
      return bytes;
    };
    const auto dense = gradients(false, false);
    EXPECT_EQ(gradients(true, false), dense);
    EXPECT_EQ(gradients(false, true), dense);
  });
}

TEST(gradient_cases, r27_dout_past_two_thousand_million_elements) {
  constexpr std::int64_t kRowStride = 9728, kRows = 225305, kDim = 8, kUsed = 10;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kRows * kRowStride) * 2;
  void* memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no room for 4.4 GB of addresses";
  on_each({{Backend::Reference, "", DType::BF16}, {Backend::Cpu, "", DType::BF16}},
          [&](const Target& target) {
            const auto gradients = [&](bool far) {
              GradientCall call{Call{}};
              call.args.q = call.keep(HostTensor(target.dtype, {kRows, 1, kDim}, noise(1)));
              call.args.k = call.keep(HostTensor(target.dtype, {12, 1, kDim}, noise(2)));
              call.args.v = call.keep(HostTensor(target.dtype, {12, 1, kDim}, noise(3)));
              call.args.cu_seqlens_q = call.keep(HostTensor({kRows - kUsed, kRows}));
              call.args.cu_seqlens_k = call.keep(HostTensor({0, 12}));
              TensorView& dout = call.backward.dout;
              dout = call.keep(HostTensor(target.dtype, {kRows, 1, kDim}, constant(0)));
              if (far)
                dout = make_view(memory, target.dtype, std::array{kRows, std::int64_t{1}, kDim},
                                 std::array{kRowStride, kDim, std::int64_t{1}});
              for (std::int64_t n = 0; n < kUsed * kDim; ++n) {
                const std::int64_t row = kRows - 1 - n / kDim;
                store_float(dout.data, dout.dtype, row * dout.strides[0] + n % kDim,
                            static_cast<float>(n % 7) - 3);
              }
              call.run_gradients(target);
              std::vector<std::vector<unsigned char>> bytes;
              for (const TensorView* view : {&call.backward.dq, &call.backward.dk, &call.backward.dv})
                bytes.push_back(bytes_of(*view));
              return bytes;
            };
            EXPECT_EQ(gradients(true), gradients(false));
          });
  munmap(memory, kBytes);
}

TEST(gradient_cases, r29_many_sequences_of_one_row) {
  std::vector<Target> best = targets({DType::BF16});  // 34 MB a tensor: of the CPU, the best instruction set
  std::erase_if(best, [](const Target& target) {
    return target.backend == Backend::Cpu && target.instruction_set != cpu::simd_instruction_sets().front();
  });
  on_each(best, [](const Target& target) {
    const std::int64_t batch = full_or_sanitized(8300, 100);
    GradientCall call = uniform_gradient_call(target, {.batch = batch,
                                                       .seqlen_q = 1,
                                                       .seqlen_k = 1,
                                                       .num_heads_q = 16,
                                                       .num_heads_k = 16,
                                                       .head_dim = 128,
                                                       .head_dim_v = 128});
    call.args.q = call.keep(HostTensor(target.dtype, {batch, 1, 16, 128}, noise(1)));
    call.args.v = call.keep(HostTensor(target.dtype, {batch, 1, 16, 128}, noise(2)));
    call.run_gradients(target);
    EXPECT_EQ(bytes_of(call.args.out), bytes_of(call.args.v));
    const auto furthest_from = [](const TensorView& view, double want) {
      double most = 0;
      verify::each_element(
          view, [&](std::size_t, auto, double got) { most = std::max(most, std::abs(got - want)); });
      return most;
    };
    EXPECT_LE(furthest_from(call.backward.dq, 0), 1e-4);
    EXPECT_LE(furthest_from(call.backward.dk, 0), 1e-4);
    EXPECT_LE(furthest_from(call.backward.dv, 1), target.near(1) + 1e-5);  // P = exp(S - lse), rounded both
  });
}

TEST(gradient_cases, r34_groups_of_any_size_are_summed) {
  struct Heads {
    std::int64_t q, k;
  };
  on_every_target([](const Target& target) {
    for (const Heads heads :
         {Heads{5, 1}, {6, 1}, {7, 1}, {40, 8}, {24, 4}, {28, 4}, {56, 8}, {48, 3}, {64, 1}, {71, 1}}) {
      SCOPED_TRACE(heads.q);
      GradientCall call = uniform_gradient_call(target, {.seqlen_q = 5,
                                                         .seqlen_k = 9,
                                                         .num_heads_q = heads.q,
                                                         .num_heads_k = heads.k,
                                                         .head_dim = 64,
                                                         .head_dim_v = 64});
      call.args.v =
          call.keep(HostTensor(target.dtype, {1, 9, heads.k, 64}, [](auto idx) { return idx[2] + 1; }));
      call.run_gradients(target);
      const double want = static_cast<double>(heads.q / heads.k) * 5.0 / 9.0;
      expect_all(call.backward.dv, want, 2 * target.near(want));
      for (std::int64_t h = 0; h < heads.q; ++h) {
        EXPECT_NEAR(call.out({0, 0, h, 0}), static_cast<double>(h * heads.k / heads.q + 1), target.near(72));
      }
    }
  });
}

TEST(gradient_cases, r35_any_head_dim_and_length) {
  for (const int dim : {1, 8, 40, 56, 63, 72, 80, 96, 120, 192, 256, 320, 512, 576}) {
    check_on_targets({DType::F32, DType::BF16},
                     "b1_hq2_hk1_sq9_sk65_d" + std::to_string(dim) + "_causal_bwd");
  }
  for (const char* dims :
       {"d128_dv96", "d64_dv128", "d192_dv128", "d256_dv192", "d576_dv512", "d128_dv8", "d32_dv64"}) {
    check_on_targets({DType::F32, DType::F16}, "b1_hq2_sq65_sk33_" + std::string(dims) + "_bwd_dlse");
  }
  for (const int sq : {1, 9, 12, 63, 64, 65, 127, 129}) {
    for (const int sk : {1, 12, 64, 129}) {
      check_on_targets({DType::F32, DType::BF16},
                       "b1_hq1_sq" + std::to_string(sq) + "_sk" + std::to_string(sk) + "_d64_causal_bwd");
    }
  }
}

TEST(gradient_cases, r36_every_run_gives_the_same_bits) {
  on_every_target([](const Target& target) {
    if (target.backend == Backend::Reference) return;
    const std::int64_t seqlen = full_or_sanitized(1024, 64);
    const Sizes sizes{.seqlen_q = seqlen,
                      .seqlen_k = seqlen,
                      .num_heads_q = 8,
                      .num_heads_k = 8,
                      .head_dim = 64,
                      .head_dim_v = 64};
    GradientCall call(uniform_call(target, sizes));
    call.args.q = call.keep(HostTensor(target.dtype, {1, seqlen, 8, 64}, noise(1)));
    call.args.v = call.keep(HostTensor(target.dtype, {1, seqlen, 8, 64}, noise(2)));
    call.options.causal = Causal::BottomRight;
    call.fill_dout(noise(3));
    call.allocate_outputs();
    run_on(target, call.args, call.options);
    call.backward.forward = call.args;
    std::vector<std::vector<unsigned char>> first;
    for (const int threads : {0, 0, 1, 7}) {  // for 7 threads, heads are divided
      call.allocate_gradients();
      ForwardOptions options = call.options;
      options.num_threads = threads;
      run_on(target, call.backward, options);
      std::vector<std::vector<unsigned char>> bytes;
      for (const TensorView* view : {&call.backward.dq, &call.backward.dk, &call.backward.dv})
        bytes.push_back(bytes_of(*view));
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << threads << " threads";
    }
  });
}

TEST(gradient_cases, r40_the_gradient_of_a_sink) {
  on_every_target([](const Target& target) {
    const auto call_of = [&](double sink, std::int64_t seqlen_k) {
      GradientCall call = uniform_gradient_call(target, {.seqlen_k = seqlen_k, .head_dim_v = 1});
      call.args.sinks = call.keep(HostTensor(DType::F32, {1}, constant(sink)));
      call.run_gradients(target);
      return call;
    };
    EXPECT_NEAR(Call::element(call_of(0, 3).backward.dsinks, {0}), -0.375, 1e-6);
    EXPECT_NEAR(Call::element(call_of(2, 0).backward.dsinks, {0}), 0, 0);
    EXPECT_EQ(Call::element(call_of(-static_cast<double>(kInf), 3).backward.dsinks, {0}), 0.0f);
    EXPECT_NEAR(Call::element(call_of(100, 3).backward.dsinks, {0}), 0, 1e-6);
  });
}

TEST(gradient_cases, r46_a_loss_on_the_lse_alone) {
  on_every_target([](const Target& target) {
    GradientCall call{Call{}};
    call.args.q = call.keep(HostTensor(target.dtype, {1, 1, 1, 1}, constant(1)));
    call.args.k = call.keep(
        HostTensor(target.dtype, {1, 2, 1, 1}, [](auto idx) { return idx[1] == 0 ? 0.0 : std::log(3.0); }));
    call.args.v = call.keep(HostTensor(target.dtype, {1, 2, 1, 1}, row_number(1)));
    call.options.softmax_scale = 1.0;
    call.fill_dout(constant(0));
    call.backward.dlse = call.keep(HostTensor(DType::F32, {1, 1, 1}, constant(1)));
    call.run_gradients(target);
    EXPECT_NEAR(Call::element(call.backward.dq, {0, 0, 0, 0}), 0.823959, 4 * target.near(0.82) + 1e-6);
    EXPECT_NEAR(Call::element(call.backward.dk, {0, 0, 0, 0}), 0.25, 4 * target.near(0.25) + 1e-6);
    EXPECT_NEAR(Call::element(call.backward.dk, {0, 1, 0, 0}), 0.75, 4 * target.near(0.75) + 1e-6);
    expect_all(call.backward.dv, 0);
  });
}

TEST(gradient_cases, features_together) {
  for (const char* text :
       {"b2_hq4_hk2_sq70_sk90_d40_causal_softcap3_alibi_biasbh_sink_bwd_dlse",
        "b2_hq2_sq33_sk140_d64_wl20_wr5_bwd", "b3_hq4_hk2_sq40_sk50_d24_bias11_biasinf_ragged_bwd_seed3",
        "b2_hq2_sq65_sk65_d32_scale-0.2_alibib_bwd",
        "b3_hq2_sq40_sk30_d64_biasb1f32_packed_ragged_gap_bwd_seed4",
        "b2_hq2_sq40_sk30_d64_bhsd_bwd_doutother", "b2_hq2_sq40_sk30_d64_dimstride2_bwd",
        "b2_hq2_sq40_sk30_d64_reversed_bwd_dlse_sink", "b2_hq4_sq40_sk30_d64_broadcastk_bwd_doutone",
        "b2_hq4_hk1_sq40_sk30_d64_qkvpacked_causaltl_wl4_bwd", "b2_hq2_sq300_sk400_d64_causal_bwd",
        "b1_hq1_sq400_sk300_d80_causal_bwd_sink",
        // More keys than a thread holds at once.
        "b1_hq2_hk1_sq90_sk700_d128_causal_wl200_bwd", "b1_hq1_sq200_sk300_d256_causal_softcap3_bwd"}) {
    check_on_targets({DType::F32, DType::F16, DType::BF16}, text);
    check_on_targets({DType::F32}, text, 7);
  }
}

}  // namespace
}  // namespace onepass
