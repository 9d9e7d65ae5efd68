// Every rule of append_kv's arguments: what is given and what is allowed stand in the message.
#include "problem/append_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace onepass {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A correct call that each test breaks in one place: two sequences of 3 new rows, pages of 4.
struct Call {
  std::vector<float> memory = std::vector<float>(2048, 0.0f), cache = memory;
  std::vector<std::int32_t> lengths{2, 5}, table{0, 2, 1, 3}, cu{0, 2, 6}, used{3, 1}, rows{4, 0};
  std::vector<std::int32_t> cu_q{0, 1, 2}, positions{0, 6}, results{0, 0};
  AppendArguments args;
  AppendOptions options;

  TensorView read(std::initializer_list<std::int64_t> shape) {
    return make_view(memory.data(), DType::F32, shape);
  }
  TensorView written(std::initializer_list<std::int64_t> shape) {
    return make_view(cache.data(), DType::F32, shape);
  }
  static TensorView index(std::vector<std::int32_t>& values) {
    return make_view(values.data(), DType::I32, {static_cast<std::int64_t>(values.size())});
  }

  Call() {
    args.k_new = read({2, 3, 2, 8});
    args.v_new = read({2, 3, 2, 6});
    args.k_cache = written({4, 4, 2, 8});
    args.v_cache = written({4, 4, 2, 6});
    args.cache_seqlens = index(lengths);
    args.block_table = make_view(table.data(), DType::I32, {2, 2});
    args.rotary_cos = read({9, 3});
    args.rotary_sin = read({9, 3});
    args.q = read({2, 3, 4, 8});
    args.q_out = written({2, 3, 4, 8});
    args.seqlens_out = index(results);
  }
};

std::string refusal(const std::function<void(Call&)>& change) {
  Call call;
  change(call);
  try {
    validate_append("append_kv", call.args, call.options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(append_problem, a_correct_call_is_resolved) {
  Call call;
  const AppendProblem p = validate_append("append_kv", call.args, call.options);
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.capacity, 8);
  EXPECT_EQ(p.rows_new.total, 6);
  EXPECT_EQ(p.rotary_dim, 6);
  EXPECT_EQ(p.num_heads_q, 4);
}

TEST(append_problem, missing_tensors_and_partners_are_named) {
  EXPECT_THAT(refusal([](Call& c) { c.args.k_new = {}; }), HasSubstr("append_kv: k_new is missing"));
  EXPECT_THAT(refusal([](Call& c) { c.args.v_cache = {}; }), HasSubstr("v_cache is missing"));
  EXPECT_THAT(refusal([](Call& c) { c.args.rotary_sin = {}; }),
              HasSubstr("rotary_cos is given without rotary_sin"));
  EXPECT_THAT(refusal([](Call& c) { c.args.rotary_cos = c.args.rotary_sin = {}; }),
              HasSubstr("q is given without rotary_cos"));
  EXPECT_THAT(refusal([](Call& c) { c.args.q = {}; }), HasSubstr("q_out is given without q"));
  EXPECT_THAT(refusal([](Call& c) { c.args.q_out = {}; }), HasSubstr("q_out is missing"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.rotary_cos = c.args.rotary_sin = c.args.q = c.args.q_out = {};
                c.args.rotary_positions = Call::index(c.positions);
              }),
              HasSubstr("rotary_positions is given without rotary_cos"));
}

TEST(append_problem, shapes_agree) {
  EXPECT_THAT(refusal([](Call& c) {
                c.args.v_new = c.read({2, 4, 2, 6});
              }),
              HasSubstr("v_new [2, 4, 2, 6] has extent 4 in dimension 1, but k_new is [2, 3, 2, 8]"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.k_cache = c.written({4, 4, 1, 8});
              }),
              HasSubstr("k_new has 2 heads"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.k_cache = c.written({4, 4, 2, 6});
              }),
              HasSubstr("k_new has head_dim 8"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.v_cache = c.written({4, 3, 2, 6});
              }),
              HasSubstr("k_cache is [4, 4, 2, 8]"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.rotary_cos = c.args.rotary_sin = c.read({9, 5});
              }),
              HasSubstr("turns 10 elements, but k_new has head_dim 8"));
  EXPECT_THAT(refusal([](Call& c) { c.args.rotary_sin = c.read({8, 3}); }), HasSubstr("rotary_sin [8, 3]"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.q_out = c.written({2, 3, 4, 7});
              }),
              HasSubstr("q is [2, 3, 4, 8]"));
  EXPECT_THAT(refusal([](Call& c) { c.args.cache_seqlens = make_view(c.lengths.data(), DType::I32, {1}); }),
              HasSubstr("cache_seqlens [1] has extent 1 in dimension 0, but the batch is 2"));
  EXPECT_THAT(refusal([](Call& c) { c.args.block_table = {}; }),
              HasSubstr("k_cache [4, 4, 2, 8] has extent 4 in dimension 0, but the batch is 2"));
  EXPECT_THAT(refusal([](Call& c) { c.args.k_new = c.read({6, 2, 8}); }), HasSubstr("4 dimensions"));
}

TEST(append_problem, factors_need_a_cache_of_8_bits_and_a_shape_that_fits) {
  static std::vector<float> factors(64);
  const auto eight_bits = [](Call& c, std::initializer_list<std::int64_t> shape) {
    c.args.k_cache.dtype = c.args.v_cache.dtype = DType::F8E4M3;
    c.args.k_descale = make_view(factors.data(), DType::F32, shape);
  };
  EXPECT_THAT(refusal([](Call& c) { c.args.k_descale = make_view(factors.data(), DType::F32, {1}); }),
              AllOf(HasSubstr("k_descale is given, but k_cache has dtype f32"), HasSubstr("f8 or i8")));
  EXPECT_THAT(
      refusal([&](Call& c) { eight_bits(c, {3}); }),
      AllOf(HasSubstr("k_descale has shape [3]"), HasSubstr("of pages [pages = 4, 1, heads_k = 2 or 1]")));
  for (const std::int64_t heads : {1, 2}) {
    EXPECT_EQ(refusal([&](Call& c) { eight_bits(c, {4, 1, heads}); }), "no error");
  }
  EXPECT_EQ(refusal([&](Call& c) { eight_bits(c, {2, 2}); }), "no error");
  EXPECT_THAT(refusal([&](Call& c) {
                eight_bits(c, {4, 1, 2});
                c.args.block_table = {};
                c.args.cache_batch_idx = Call::index(c.positions);
              }),
              HasSubstr("k_descale [4, 1, 2] has factors of pages, but keys are not paged"));
  EXPECT_THAT(refusal([](Call& c) { c.args.k_cache.dtype = DType::I8; }), HasSubstr("v_cache has dtype f32"));
}

TEST(append_problem, dtypes_devices_and_strides_hold) {
  EXPECT_THAT(refusal([](Call& c) { c.args.v_new.dtype = DType::BF16; }), HasSubstr("v_new has dtype bf16"));
  EXPECT_THAT(refusal([](Call& c) { c.args.k_cache.dtype = DType::F16; }),
              HasSubstr("k_cache has dtype f16"));
  EXPECT_THAT(refusal([](Call& c) { c.args.rotary_sin.dtype = DType::F16; }),
              HasSubstr("rotary_sin has dtype f16"));
  EXPECT_THAT(refusal([](Call& c) { c.args.overflow = c.read({2}); }), HasSubstr("overflow has dtype f32"));
  EXPECT_THAT(refusal([](Call& c) { c.args.v_cache.device = DeviceKind::Cuda; }),
              HasSubstr("v_cache is on GPU 0, but k_new is on the CPU"));
  EXPECT_THAT(refusal([](Call& c) { c.args.k_cache.strides[0] = 0; }), HasSubstr("share memory"));
  EXPECT_THAT(refusal([](Call& c) { c.args.seqlens_out = c.args.cache_seqlens; }),
              HasSubstr("seqlens_out and cache_seqlens start at the same address"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.q_out = c.args.q, c.args.q_out.strides = {96, 8, 24, 1};
              }),
              HasSubstr("q_out starts where q starts, with other strides"));
  EXPECT_EQ(refusal([](Call& c) { c.args.q_out = c.args.q; }), "no error");
  EXPECT_THAT(refusal([](Call& c) { c.options.num_threads = -1; }), HasSubstr("num_threads is -1"));
}

TEST(append_problem, what_does_not_fit_is_told_with_its_numbers) {
  EXPECT_THAT(
      refusal([](Call& c) {
        c.lengths = {2, 6};
      }),
      AllOf(HasSubstr("cache_seqlens[1] is 6 and sequence 1 gets 3 new rows, but the cache has room for 8"),
            HasSubstr("(2 pages of 4)")));
  EXPECT_THAT(refusal([](Call& c) { c.lengths = {-1, 5}; }), HasSubstr("cache_seqlens[0] is -1"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.k_new = c.read({2, 9, 2, 8}), c.args.v_new = c.read({2, 9, 2, 6});
              }),
              HasSubstr("k_new has 9 rows a sequence, but the cache has room for 8"));
  EXPECT_THAT(refusal([](Call& c) {
                c.table = {0, 2, -1, 4};
              }),
              HasSubstr("block_table[1][1] is 4, but the pool has 4 pages"));
  EXPECT_EQ(refusal([](Call& c) {
              c.table = {0, 2, -1, 3};
            }),
            "no error")
      << "page 0 of sequence 1 is not written";
  EXPECT_THAT(refusal([](Call& c) {
                c.args.seqused_new = Call::index(c.used), c.used = {3, 4};
              }),
              HasSubstr("seqused_new[1] is 4, but sequence 1 has room for 3 rows"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.block_table = {};
                c.args.cache_batch_idx = Call::index(c.rows);
                c.lengths = {0, 1};
              }),
              HasSubstr("cache_batch_idx[0] is 4, but k_cache has 4 rows"));
  EXPECT_THAT(refusal([](Call& c) { c.args.cache_batch_idx = Call::index(c.rows); }),
              HasSubstr("both block_table and cache_batch_idx are given"));
  EXPECT_THAT(refusal([](Call& c) {
                c.args.rotary_positions = Call::index(c.positions), c.positions = {0, 7};
              }),
              HasSubstr("sequence 1 needs the positions 7 to 9, but rotary_cos has 9"));
  EXPECT_EQ(refusal([](Call& c) { c.args.rotary_positions = Call::index(c.positions); }), "no error");
}

TEST(append_problem, packed_rows_have_offsets) {
  const auto packed = [](Call& c) {
    c.args.k_new = c.read({6, 2, 8});
    c.args.v_new = c.read({6, 2, 6});
    c.args.cu_seqlens_new = Call::index(c.cu);
    c.lengths = {0, 0};
  };
  EXPECT_EQ(refusal(packed), "no error");
  EXPECT_THAT(refusal([&](Call& c) {
                packed(c), c.cu = {0, 2, 7};
              }),
              HasSubstr("cu_seqlens_new[2] is 7, but k_new has 6 rows"));
  EXPECT_THAT(refusal([&](Call& c) { packed(c), c.cu = {0, 3, 2}; }), HasSubstr("cu_seqlens_new[2] is 2"));
  EXPECT_THAT(refusal([&](Call& c) {
                packed(c);
                c.args.q = c.read({2, 4, 8}), c.args.q_out = c.written({2, 4, 8});
                c.args.cu_seqlens_q = Call::index(c.cu_q), c.cu_q = {0, 1, 3};
              }),
              HasSubstr("cu_seqlens_q[2] is 3, but q has 2 rows"));
}

}  // namespace
}  // namespace onepass
