// The float64 backward against the slope of the forward: central differences of the independent float64
// evaluation (verify/oracle.h), for every feature alone and in pairs. No formula of the backward is used.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpu/gradient_call.h"

namespace onepass {
namespace {

/// A change of a plain call. Tensors are small: every element of every input is moved.
struct Feature {
  const char* name;
  void (*add)(Call& call);
};

constexpr std::int64_t kBatch = 2, kSeqlenQ = 4, kSeqlenK = 5, kHeadsQ = 4, kHeadsK = 2, kHeadDim = 3,
                       kHeadDimV = 2;

Call plain_call() {
  Call call;
  call.args.q = call.keep(HostTensor(DType::F32, {kBatch, kSeqlenQ, kHeadsQ, kHeadDim}, noise(1)));
  call.args.k = call.keep(HostTensor(DType::F32, {kBatch, kSeqlenK, kHeadsK, kHeadDim}, noise(2)));
  call.args.v = call.keep(HostTensor(DType::F32, {kBatch, kSeqlenK, kHeadsK, kHeadDimV}, noise(3)));
  return call;
}

/// The same rows in packed buffers, sequences of 3 + 5 queries and 6 + 4 keys.
void pack_q(Call& call) {
  TensorView& q = call.args.q;
  q = make_view(q.data, q.dtype, {kBatch * kSeqlenQ, kHeadsQ, kHeadDim});
  call.args.cu_seqlens_q = call.keep(HostTensor({0, 3, 8}));
}
void pack_k(Call& call) {
  TensorView &k = call.args.k, &v = call.args.v;
  k = make_view(k.data, k.dtype, {kBatch * kSeqlenK, kHeadsK, kHeadDim});
  v = make_view(v.data, v.dtype, {kBatch * kSeqlenK, kHeadsK, kHeadDimV});
  call.args.cu_seqlens_k = call.keep(HostTensor({0, 6, 10}));
}

const Feature kFeatures[] = {
    {"causal", [](Call& c) { c.options.causal = Causal::BottomRight; }},
    {"causal_top_left", [](Call& c) { c.options.causal = Causal::TopLeft; }},
    {"window",
     [](Call& c) {
       c.options.window_left = 1;
       c.options.window_right = 2;
     }},
    {"left_window", [](Call& c) { c.options.window_left = 0; }},
    {"softcap", [](Call& c) { c.options.softcap = 0.75; }},
    {"negative_scale", [](Call& c) { c.options.softmax_scale = -0.5; }},
    {"alibi",
     [](Call& c) {
       c.args.alibi_slopes = c.keep(HostTensor(DType::F32, {kBatch, kHeadsQ}, noise(4, 0.25)));
     }},
    {"bias_of_all",
     [](Call& c) {
       c.args.bias = c.keep(HostTensor(DType::F32, {1, 1, 6, 7}, noise(5)));
     }},
    {"bias_of_heads",
     [](Call& c) {
       c.args.bias = c.keep(HostTensor(DType::F32, {1, kHeadsQ, 5, 6}, noise(6)));
     }},
    {"bias_of_sequences",
     [](Call& c) {
       c.args.bias = c.keep(HostTensor(DType::F32, {kBatch, 1, 5, 6}, noise(7)));
     }},
    {"sinks", [](Call& c) { c.args.sinks = c.keep(HostTensor(DType::F32, {kHeadsQ}, noise(8))); }},
    {"packed_q", pack_q},
    {"packed_k", pack_k},
    {"seqused_q",
     [](Call& c) {
       c.args.seqused_q = c.keep(HostTensor({2, 3}));
     }},
    {"seqused_k",
     [](Call& c) {
       c.args.seqused_k = c.keep(HostTensor({4, 1}));
     }},
};

/// The loss: dout . O + dlse . LSE, over rows that have an LSE.
double loss(const Call& call, const TensorView& dout, const TensorView& dlse) {
  const verify::Evaluation e = verify::evaluate(call.args, call.options);
  double sum = 0;
  for (std::int64_t row = 0; row < e.num_rows; ++row) {
    for (std::int64_t h = 0; h < e.num_heads; ++h) {
      const auto cell = static_cast<std::size_t>(row * e.num_heads + h);
      if (std::isinf(e.lse[cell])) continue;
      const bool packed = dout.rank == 3;
      const std::int64_t b = packed ? 0 : row / dout.shape[1], i = packed ? row : row % dout.shape[1];
      sum += e.lse[cell] *
             static_cast<double>(packed ? Call::element(dlse, {h, i}) : Call::element(dlse, {b, h, i}));
      for (std::int64_t d = 0; d < e.head_dim_v; ++d) {
        const float weight = packed ? Call::element(dout, {i, h, d}) : Call::element(dout, {b, i, h, d});
        sum += static_cast<double>(weight) *
               e.out[cell * static_cast<std::size_t>(e.head_dim_v) + static_cast<std::size_t>(d)];
      }
    }
  }
  return sum;
}

/// Each element of `gradient` (contiguous) is the slope of the loss in the same element of `input`.
void expect_slopes(const char* name, const GradientCall& call, const TensorView& input,
                   const TensorView& gradient) {
  constexpr float kStep = 0x1p-6f;
  auto* x = static_cast<float*>(input.data);
  for (std::int64_t n = 0; n < input.num_elements(); ++n) {
    const float at = x[n];
    const auto difference = [&](float step) {  // with the step that f32 makes of it
      x[n] = at + step;
      const float above = x[n];
      const double loss_above = loss(call, call.backward.dout, call.backward.dlse);
      x[n] = at - step;
      const double loss_below = loss(call, call.backward.dout, call.backward.dlse);
      const double slope =
          (loss_above - loss_below) / (static_cast<double>(above) - static_cast<double>(x[n]));
      x[n] = at;
      return slope;
    };
    // Error of fourth order (Richardson extrapolation).
    const double slope = (4 * difference(kStep / 2) - difference(kStep)) / 3;
    const double got = static_cast<const float*>(gradient.data)[n];
    EXPECT_NEAR(got, slope, 2e-6 * (1 + std::abs(slope))) << name << " element " << n;
  }
}

void check_gradients(GradientCall& call) {
  call.fill_dout(noise(9));
  const bool packed = call.args.q.rank == 3;
  const HostTensor::Shape lse =
      packed ? HostTensor::Shape{kHeadsQ, kBatch * kSeqlenQ} : HostTensor::Shape{kBatch, kHeadsQ, kSeqlenQ};
  call.backward.dlse = call.keep(HostTensor(DType::F32, lse, noise(10)));
  call.run_gradients({Backend::Reference, "", DType::F32});
  expect_slopes("dq", call, call.args.q, call.backward.dq);
  expect_slopes("dk", call, call.args.k, call.backward.dk);
  expect_slopes("dv", call, call.args.v, call.backward.dv);
  if (call.args.sinks.present()) expect_slopes("dsinks", call, call.args.sinks, call.backward.dsinks);
  if (call.args.bias.present()) expect_slopes("dbias", call, call.args.bias, call.backward.dbias);
}

TEST(gradient_formula, is_the_slope_of_a_plain_call) {
  GradientCall call(plain_call());
  check_gradients(call);
}

class gradient_formula : public ::testing::TestWithParam<std::size_t> {};

/// The feature alone, and with each that comes after it.
TEST_P(gradient_formula, is_the_slope_with_a_feature_and_with_pairs) {
  for (std::size_t other = GetParam(); other < std::size(kFeatures); ++other) {
    const Feature &a = kFeatures[GetParam()], &b = kFeatures[other];
    SCOPED_TRACE(other == GetParam() ? std::string(a.name) : std::string(a.name) + " and " + b.name);
    GradientCall call(plain_call());
    a.add(call);
    if (other != GetParam()) b.add(call);
    check_gradients(call);
  }
}

INSTANTIATE_TEST_SUITE_P(features, gradient_formula, ::testing::Range(std::size_t{0}, std::size(kFeatures)),
                         [](const auto& feature) { return std::string(kFeatures[feature.param].name); });

}  // namespace
}  // namespace onepass
