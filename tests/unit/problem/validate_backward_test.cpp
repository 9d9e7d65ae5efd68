// The rules of a backward call: what is given, what is allowed and what to do stand in the message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "problem/validate.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;

/// A correct dense call with sinks and a bias, that each test breaks in one place.
struct Call {
  std::vector<std::vector<float>> memory;
  BackwardArguments args;
  ForwardOptions options;

  TensorView f32(std::initializer_list<std::int64_t> shape) {
    memory.emplace_back(4096, 0.0f);
    return make_view(memory.back().data(), DType::F32, shape);
  }

  Call() {
    memory.reserve(32);
    ForwardArguments& f = args.forward;
    f.q = f32({2, 5, 4, 8});
    f.k = f32({2, 6, 2, 8});
    f.v = f32({2, 6, 2, 4});
    f.out = f32({2, 5, 4, 4});
    f.softmax_lse = f32({2, 4, 5});
    f.sinks = f32({4});
    f.bias = f32({1, 4, 5, 6});
    args.dout = f32({2, 5, 4, 4});
    args.dlse = f32({2, 4, 5});
    args.dq = f32({2, 5, 4, 8});
    args.dk = f32({2, 6, 2, 8});
    args.dv = f32({2, 6, 2, 4});
    args.dsinks = f32({4});
    args.dbias = f32({1, 4, 5, 6});
  }

  AttentionProblem problem() const { return validate_problem("backward", args, options); }
  void validate() const { validate_run("backward", problem(), args); }
};

template <class Error = InvalidArgument>
void expect_refused(const Call& call, const std::string& given, const std::string& rule) {
  try {
    call.validate();
    FAIL() << "accepted, but expected: " << given;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind("backward: ", 0), 0u) << message;
    EXPECT_THAT(message, HasSubstr(given));
    EXPECT_THAT(message, HasSubstr("\n  Fix: "));
    EXPECT_THAT(message, HasSubstr("\n  Allowed: "));
    EXPECT_THAT(message, HasSubstr(rule));
  }
}

TEST(validate_backward, a_correct_call_gives_its_problem) {
  const Call c;
  const AttentionProblem p = c.problem();
  ASSERT_TRUE(p.gradient.has_value());
  EXPECT_TRUE(p.gradient->has_dlse && p.gradient->has_dsinks && p.gradient->has_dbias);
  EXPECT_EQ(p.gradient->dbias_shape, (std::array<std::int64_t, 4>{1, 4, 5, 6}));
  EXPECT_EQ(p.gradient->dq, (TensorStrides{160, 32, 8, 1}));
  EXPECT_NO_THROW(c.validate());
}

TEST(validate_backward, only_q_k_and_v_need_gradients) {
  Call c;
  c.args.dlse = c.args.dsinks = c.args.dbias = {};
  EXPECT_NO_THROW(c.validate());
}

TEST(validate_backward, an_expanded_dout_is_fine) {
  Call c;
  c.args.dout.strides = {};
  EXPECT_NO_THROW(c.validate());
}

TEST(validate_backward, out_and_lse_have_the_shapes_of_the_forward_call) {
  Call out;
  out.args.forward.out = out.f32({2, 5, 4, 8});
  expect_refused(out, "out", "q's rows and heads, v's head_dim");
  Call lse;
  lse.args.forward.softmax_lse = lse.f32({2, 5, 4});
  expect_refused(lse, "softmax_lse", "one value per head and row");
  Call none;
  none.args.forward.softmax_lse = {};
  expect_refused(none, "softmax_lse is missing", "what forward() wrote");
}

TEST(validate_backward, dout_has_out_s_shape_and_dtype) {
  Call dtype;
  dtype.args.dout.dtype = DType::F16;
  expect_refused(dtype, "dout has dtype f16", "f32");
  Call shape;
  shape.args.dout = shape.f32({2, 5, 4, 8});
  expect_refused(shape, "dout", "out is [2, 5, 4, 4]");
  Call rank;
  rank.args.dout = rank.f32({10, 4, 4});
  expect_refused(rank, "dout [10, 4, 4] has 3 dimensions", "the shape of out, which is [2, 5, 4, 4]");
  Call none;
  none.args.dout = {};
  expect_refused(none, "dout is missing", "the gradient with respect to out");
}

TEST(validate_backward, gradients_have_the_shapes_and_dtype_of_what_they_are_for) {
  Call shape;
  shape.args.dk = shape.f32({2, 6, 4, 8});
  expect_refused(shape, "dk", "k is [2, 6, 2, 8]");
  Call dtype;
  dtype.args.dv.dtype = DType::BF16;
  expect_refused(dtype, "dv has dtype bf16", "f32");
  Call strides;
  strides.args.dq.strides[2] = 0;
  expect_refused(strides, "dq", "stride");
  Call bias;
  bias.args.dbias = bias.f32({2, 4, 5, 6});
  expect_refused(bias, "dbias", "bias is [1, 4, 5, 6]");
}

TEST(validate_backward, gradients_of_what_the_forward_call_does_not_have) {
  Call sinks;
  sinks.args.forward.sinks = {};
  expect_refused(sinks, "dsinks is given, but the forward call has no sinks",
                 "dsinks where forward() had sinks");
  Call bias;
  bias.args.forward.bias = {};
  expect_refused(bias, "dbias is given, but the forward call has no bias", "dbias where forward() had bias");
}

TEST(validate_backward, pages_and_8_bit_keys_are_not_supported) {
  Call f8;
  f8.args.forward.k.dtype = f8.args.forward.v.dtype = DType::F8E4M3;
  expect_refused<NotSupported>(f8, "k is f8e4m3", "q's dtype");
  Call paged;
  std::vector<std::int32_t> table{0, 1}, used{6, 6};
  paged.args.forward.block_table = make_view(table.data(), DType::I32, {2, 1});
  paged.args.forward.seqused_k = make_view(used.data(), DType::I32, {2});
  expect_refused<NotSupported>(paged, "keys are paged", "dense or packed keys");
  Call descale;
  descale.args.forward.k_descale = descale.f32({1});
  expect_refused<NotSupported>(descale, "k_descale is given", "without descale factors");
}

TEST(validate_backward, every_gradient_has_memory_of_its_own) {
  Call input;
  input.args.dq.data = input.args.forward.q.data;
  expect_refused(input, "dq and q start at the same address", "memory of their own");
  Call output;
  output.args.dk.data = output.args.dbias.data;
  expect_refused(output, "dk and dbias start at the same address", "memory of their own");
  Call dout;
  dout.args.dv.data = dout.args.dout.data;
  expect_refused(dout, "dv and dout start at the same address", "memory of their own");
}

TEST(validate_backward, a_forward_plan_is_not_for_a_backward_call) {
  const Call c;
  const AttentionProblem forward = validate_problem("forward", c.args.forward, c.options);
  EXPECT_THROW(validate_run("run", forward, c.args), InvalidArgument);
  EXPECT_THROW(validate_run("run", c.problem(), c.args.forward), InvalidArgument);
}

}  // namespace
}  // namespace onepass
