// Merging partial results (spec section 3).
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/cpu/call.h"
#include "verify/device_copies.h"
#include "verify/oracle.h"

namespace onepass {
namespace {

/// One row, one head, `values` in its channels.
HostTensor one_row(DType dtype, const std::vector<double>& values) {
  return HostTensor(dtype, {1, 1, 1, static_cast<std::int64_t>(values.size())},
                    [&](auto idx) { return values[static_cast<std::size_t>(idx[3])]; });
}
HostTensor one_lse(double lse) { return HostTensor(DType::F32, {1, 1, 1}, constant(lse)); }

/// Merges tensors of host memory on the CPU, or copies of them on the GPU.
void merge_on(Backend backend, MergeArguments args, int num_threads = 0) {
  if (backend == Backend::Cpu) return merge(args, num_threads);
  const std::array<TensorView*, 6> views = {&args.out_a, &args.lse_a, &args.out_b,
                                            &args.lse_b, &args.out,   &args.lse};
  const verify::DeviceCopies copies(views, 0);
  merge(args);
  EXPECT_EQ(copies.copy_back(), std::nullopt);
}

/// body(backend) for the CPU, and for the GPU where there is one (ONEPASS_TEST_TARGETS as in target.h).
template <class Body>
void on_every_merger(Body body) {
  for (const Backend backend : {Backend::Cpu, Backend::Cuda}) {
    if (!target_wanted(backend)) continue;
    SCOPED_TRACE(backend_name(backend));
    body(backend);
  }
}

TEST(merge, r10_states_with_and_without_keys) {
  on_every_merger([](Backend backend) {
    struct State {
      double out, lse;
    };
    const auto merged = [&](DType dtype, State a, State b) {
      const HostTensor out_a = one_row(dtype, {a.out}), out_b = one_row(dtype, {b.out});
      const HostTensor lse_a = one_lse(a.lse), lse_b = one_lse(b.lse), out = one_row(dtype, {kNan}),
                       lse = one_lse(kNan);
      merge_on(backend, {out_a.view(), lse_a.view(), out_b.view(), lse_b.view(), out.view(), lse.view()});
      return State{out.get({0, 0, 0, 0}), lse.get({0, 0, 0})};
    };
    for (const DType dtype : kFloatTypes) {
      const double rounding = Target{Backend::Reference, "", dtype}.near(3.8);
      const State none = merged(dtype, {0, -kInf}, {0, -kInf});
      EXPECT_EQ(none.out, 0);
      EXPECT_EQ(none.lse, -kInf);
      for (const bool swapped : {false, true}) {
        const State empty{kNan, -kInf};  // what an empty side holds is never read
        const State one = swapped ? merged(dtype, {2.5, 1.25}, empty) : merged(dtype, empty, {2.5, 1.25});
        EXPECT_EQ(one.out, 2.5);
        EXPECT_EQ(one.lse, 1.25);
      }
      const State two = merged(dtype, {2.5, std::log(4.0)}, {9, 0});
      EXPECT_NEAR(two.out, 3.8, rounding);
      EXPECT_NEAR(two.lse, 1.609438, 1e-6);
    }
  });
}

TEST(merge, one_empty_side_returns_the_other_bit_for_bit_row_by_row) {
  on_every_merger([](Backend backend) {
    const HostTensor out_a(DType::BF16, {2, 5, 3, 17}, noise(1)), out_b(DType::BF16, {2, 5, 3, 17}, noise(2));
    const auto alternating = [](std::int64_t parity) {
      return HostTensor(DType::F32, {2, 3, 5}, [parity](auto idx) {
        return idx[2] % 2 == parity ? -static_cast<double>(kInf) : 0.7;
      });
    };
    const HostTensor lse_a = alternating(0), lse_b = alternating(1), out(DType::BF16, {2, 5, 3, 17}),
                     lse(DType::F32, {2, 3, 5});
    merge_on(backend, {out_a.view(), lse_a.view(), out_b.view(), lse_b.view(), out.view(), lse.view()}, 3);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = 0; i < 5; ++i) {
        for (std::int64_t h = 0; h < 3; ++h) {
          EXPECT_EQ(lse.get({b, h, i}), 0.7f);
          for (std::int64_t d = 0; d < 17; ++d) {
            EXPECT_EQ(out.get({b, i, h, d}), (i % 2 == 0 ? out_b : out_a).get({b, i, h, d}));
          }
        }
      }
    }
  });
}

TEST(merge, weights_of_very_different_sizes_neither_overflow_nor_vanish) {
  on_every_merger([](Backend backend) {
    for (const auto& [a, b, want] : std::vector<std::array<double, 3>>{
             {1e30, 0, 1}, {-1e30, 5, 9}, {90000, 90000, 5}, {-90000, -90000, 5}}) {
      const HostTensor out_a = one_row(DType::F32, {1}), out_b = one_row(DType::F32, {9}), lse_a = one_lse(a),
                       lse_b = one_lse(b);
      const HostTensor out = one_row(DType::F32, {kNan}), lse = one_lse(kNan);
      merge_on(backend, {out_a.view(), lse_a.view(), out_b.view(), lse_b.view(), out.view(), lse.view()});
      EXPECT_FLOAT_EQ(out.get({0, 0, 0, 0}), static_cast<float>(want)) << a << " " << b;
      EXPECT_FLOAT_EQ(lse.get({0, 0, 0}), static_cast<float>(std::max(a, b) + (a == b ? std::log(2.0) : 0)));
    }
  });
}

/// Attention over keys [begin, end) of a call's k and v.
Call part_of(const Call& whole, std::int64_t begin, std::int64_t end) {
  Call part;
  part.args = whole.args;
  part.options = whole.options;
  for (TensorView* view : {&part.args.k, &part.args.v}) {
    view->data = static_cast<char*>(view->data) + begin * view->strides[1] * dtype_bytes(view->dtype);
    view->shape[1] = end - begin;
  }
  return part;
}

TEST(merge, parts_of_the_keys_merge_to_the_whole) {
  on_every_target([](const Target& target) {
    Call whole;
    for (auto [view, length, seed] :
         {std::tuple{&whole.args.q, 5, 1}, {&whole.args.k, 150, 2}, {&whole.args.v, 150, 3}}) {
      *view = whole.keep(HostTensor(target.dtype, {2, length, 4, 24}, noise(seed)));
    }
    const verify::Evaluation evaluation = evaluate_once(whole.args, whole.options);
    for (const std::int64_t cut : {0, 1, 64, 75, 150}) {
      Call a = part_of(whole, 0, cut), b = part_of(whole, cut, 150);
      a.run(target);
      b.run(target);
      whole.allocate_outputs();
      merge_on(target.on_gpu() ? Backend::Cuda : Backend::Cpu,
               {a.args.out, a.args.softmax_lse, b.args.out, b.args.softmax_lse, whole.args.out,
                whole.args.softmax_lse},
               2);
      // The parts were rounded to the dtype on their own: one rounding more than the bound of a whole call
      // knows.
      for (std::size_t n = 0; n < evaluation.out.size(); ++n) {
        const float got = load_float(whole.args.out.data, target.dtype, static_cast<std::int64_t>(n));
        EXPECT_NEAR(got, evaluation.out[n], 3 * target.rounding() * (1 + std::abs(evaluation.out[n]))) << cut;
      }
      for (std::int64_t bh = 0; bh < 8; ++bh) {
        for (std::int64_t i = 0; i < 5; ++i) {
          const double want = evaluation.lse[static_cast<std::size_t>((bh / 4 * 5 + i) * 4 + bh % 4)];
          EXPECT_NEAR(whole.lse({bh / 4, bh % 4, i}), want, 1e-5 * (1 + std::abs(want)));
        }
      }
    }
  });
}

TEST(merge, results_may_replace_a_side_and_types_strides_and_packing_may_differ) {
  on_every_merger([](Backend backend) {
    const HostTensor out_b(DType::F32, {4, 2, 8}, noise(2)), lse_b(DType::F32, {2, 4}, noise(4));
    HostTensor out_a(DType::F16, {4, 2, 8}, noise(1)), lse_a(DType::F32, {2, 4}, noise(3));
    const HostTensor before_out(DType::F16, {4, 2, 8}, [&](auto idx) {
      return out_a.get({idx[0], idx[1], idx[2]});
    });
    const HostTensor before_lse(DType::F32, {2, 4}, [&](auto idx) { return lse_a.get({idx[0], idx[1]}); });

    // Into tensors of another memory order first: [heads, rows, dims] and [rows, heads].
    HostTensor out(DType::BF16, {2, 4, 8}), lse(DType::F32, {4, 2});
    merge_on(backend, {out_a.view(), lse_a.view(), out_b.view(), lse_b.view(), transpose(out.view(), 0, 1),
                       transpose(lse.view(), 0, 1)});
    merge_on(backend, {out_a.view(), lse_a.view(), out_b.view(), lse_b.view(), out_a.view(), lse_a.view()});
    for (std::int64_t row = 0; row < 4; ++row) {
      for (std::int64_t h = 0; h < 2; ++h) {
        const double a = std::exp(before_lse.get({h, row})), b = std::exp(lse_b.get({h, row}));
        EXPECT_NEAR(lse_a.get({h, row}), std::log(a + b), 1e-6);
        EXPECT_EQ(lse_a.get({h, row}), lse.get({row, h}));
        for (std::int64_t d = 0; d < 8; ++d) {
          const double want = (a * before_out.get({row, h, d}) + b * out_b.get({row, h, d})) / (a + b);
          EXPECT_NEAR(out_a.get({row, h, d}), want, 0x1p-11 * std::abs(want) + 1e-6);
          EXPECT_NEAR(out.get({h, row, d}), want, 0x1p-8 * std::abs(want) + 1e-6);
        }
      }
    }
  });
}

TEST(merge, without_lse_only_out_is_written) {
  on_every_merger([](Backend backend) {
    const HostTensor out_a = one_row(DType::F32, {1}), out_b = one_row(DType::F32, {3}), lse_a = one_lse(0),
                     lse_b = one_lse(0);
    const HostTensor out = one_row(DType::F32, {kNan});
    merge_on(backend, {out_a.view(), lse_a.view(), out_b.view(), lse_b.view(), out.view(), {}});
    EXPECT_EQ(out.get({0, 0, 0, 0}), 2.0f);
  });
}

TEST(merge, nothing_to_merge_is_no_error) {
  on_every_merger([](Backend backend) {
    const HostTensor out(DType::F32, {0, 2, 4}), lse(DType::F32, {2, 0});
    EXPECT_NO_THROW(
        merge_on(backend, {out.view(), lse.view(), out.view(), lse.view(), out.view(), lse.view()}));
  });
}

}  // namespace
}  // namespace onepass
