// Every argument rule: what is given, what is allowed and what to do stand in the message.
#include "problem/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace onepass {
namespace {

using ::testing::HasSubstr;

/// A correct call, dense or packed or paged, that each test breaks in one place.
struct Call {
  std::vector<float> memory = std::vector<float>(4096, 0.0f);
  std::vector<float> out_memory = std::vector<float>(4096, 0.0f);
  std::vector<std::int32_t> cu_q{0, 3, 8}, cu_k{0, 4, 10}, used_q{3, 5}, used_k{4, 6}, table{0, 2, 1, 3};
  ForwardArguments args;
  ForwardOptions options;

  static TensorView index(std::vector<std::int32_t>& values) {
    return make_view(values.data(), DType::I32, {static_cast<std::int64_t>(values.size())});
  }
  TensorView f32(std::initializer_list<std::int64_t> shape) {
    return make_view(memory.data(), DType::F32, shape);
  }
  TensorView written(std::initializer_list<std::int64_t> shape) {
    return make_view(out_memory.data(), DType::F32, shape);
  }

  static Call dense() {
    Call c;
    c.args.q = c.f32({2, 5, 4, 8});
    c.args.k = c.f32({2, 6, 2, 8});
    c.args.v = c.f32({2, 6, 2, 4});
    c.args.out = c.written({2, 5, 4, 4});
    c.args.softmax_lse = c.written({2, 4, 5});
    return c;
  }
  static Call packed() {
    Call c;
    c.args.q = c.f32({8, 4, 8});
    c.args.k = c.f32({10, 2, 8});
    c.args.v = c.f32({10, 2, 4});
    c.args.out = c.written({8, 4, 4});
    c.args.softmax_lse = c.written({4, 8});
    return c;
  }
  static Call paged() {
    Call c = packed();
    c.args.k = c.f32({4, 3, 2, 8});
    c.args.v = c.f32({4, 3, 2, 4});
    return c;
  }
  // Index views point into this object, so they are set once it has its final address.
  void bind_packed() {
    args.cu_seqlens_q = index(cu_q);
    args.cu_seqlens_k = index(cu_k);
  }
  void bind_paged() {
    args.cu_seqlens_q = index(cu_q);
    args.seqused_k = index(used_k);
    args.block_table = make_view(table.data(), DType::I32, {2, 2});
  }

  void validate() {
    const AttentionProblem problem = validate_problem("forward", args, options);
    validate_run("forward", problem, args);
  }
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

void expect_refused(Call& call, const std::string& given, const std::string& allowed) {
  const std::string message = message_of([&] { call.validate(); });
  EXPECT_THAT(message, HasSubstr(given));
  EXPECT_THAT(message, HasSubstr("\n  Allowed: "));
  EXPECT_THAT(message, HasSubstr("\n  Fix: "));
  const std::size_t at = message.find("Allowed: ");
  EXPECT_THAT(at == std::string::npos ? message : message.substr(at), HasSubstr(allowed));
  EXPECT_EQ(message.rfind("forward: ", 0), 0u) << message;
}

TEST(validate, a_correct_dense_call_gives_its_problem) {
  Call c = Call::dense();
  const AttentionProblem p = validate_problem("forward", c.args, c.options);
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.num_heads_q, 4);
  EXPECT_EQ(p.num_heads_k, 2);
  EXPECT_EQ(p.seqlen_q, 5);
  EXPECT_EQ(p.seqlen_k, 6);
  EXPECT_EQ(p.head_dim, 8);
  EXPECT_EQ(p.head_dim_v, 4);
  EXPECT_EQ(p.q_layout, SequenceLayout::Dense);
  EXPECT_DOUBLE_EQ(p.softmax_scale, 1.0 / std::sqrt(8.0));
  EXPECT_TRUE(p.has_lse);
  EXPECT_NO_THROW(c.validate());
}

TEST(validate, packed_lengths_are_read_from_the_offsets) {
  Call c = Call::packed();
  c.bind_packed();
  const AttentionProblem p = validate_problem("forward", c.args, c.options);
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.seqlen_q, 5);
  EXPECT_EQ(p.seqlen_k, 6);
  EXPECT_EQ(p.total_q, 8);
  EXPECT_NO_THROW(c.validate());
}

TEST(validate, paged_bound_is_the_longest_used_length) {
  Call c = Call::paged();
  c.bind_paged();
  const AttentionProblem p = validate_problem("forward", c.args, c.options);
  EXPECT_EQ(p.seqlen_k, 6);
  EXPECT_EQ(p.page_size, 3);
  EXPECT_EQ(p.num_pages, 4);
  EXPECT_NO_THROW(c.validate());
}

TEST(validate, a_window_past_every_length_is_no_window) {
  Call c = Call::dense();
  c.options.window_left = std::numeric_limits<std::int64_t>::max();
  c.options.window_right = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(validate_problem("forward", c.args, c.options).unmasked());
}

TEST(validate, a_missing_tensor_is_named) {
  for (TensorView ForwardArguments::*member :
       {&ForwardArguments::q, &ForwardArguments::k, &ForwardArguments::v, &ForwardArguments::out}) {
    Call c = Call::dense();
    c.args.*member = {};
    expect_refused(c, "is missing", "must be given");
  }
}

TEST(validate, swapped_layout_is_recognised) {
  Call c = Call::dense();
  c.args.q = make_view(c.memory.data(), DType::F32, {2, 4, 512, 8});
  c.args.k = make_view(c.memory.data(), DType::F32, {2, 2, 48, 8});
  c.args.v = c.args.k;
  c.args.out = c.args.q;
  expect_refused(
      c, "q has 512 heads, but k has 48 (q [2, 4, 512, 8], k [2, 2, 48, 8])",
      "query heads are a multiple of key heads; the layout is [batch, seqlen, heads, head_dim].\n  Fix: "
      "these look like [batch, heads, seqlen, head_dim]");
}

TEST(validate, head_dim_mismatch_names_both_tensors) {
  Call c = Call::dense();
  c.args.k = c.f32({2, 6, 2, 6});
  expect_refused(c, "k [2, 6, 2, 6] has extent 6 in dimension 3, but q has head_dim 8 (q [2, 5, 4, 8])",
                 "8 there");
}

TEST(validate, k_and_v_rows_must_agree) {
  Call c = Call::dense();
  c.args.v = c.f32({2, 7, 2, 4});
  expect_refused(c, "v [2, 7, 2, 4] has extent 7 in dimension 1, but k has 6", "6 there");
}

TEST(validate, batch_mismatch_is_named) {
  Call c = Call::dense();
  c.args.k = c.f32({3, 6, 2, 8});
  c.args.v = c.f32({3, 6, 2, 4});
  expect_refused(c, "k [3, 6, 2, 8] has extent 3 in dimension 0, but the batch is 2 (q [2, 5, 4, 8])",
                 "2 there");
}

TEST(validate, out_shape_is_checked) {
  Call c = Call::dense();
  c.args.out = c.written({2, 5, 4, 8});
  expect_refused(c, "out [2, 5, 4, 8]", "[2, 5, 4, 4]");
}

TEST(validate, lse_shape_is_checked) {
  Call c = Call::dense();
  c.args.softmax_lse = c.written({2, 5, 4});
  expect_refused(c, "softmax_lse [2, 5, 4]", "[2, 4, 5]");
}

TEST(validate, wrong_rank_names_the_layout) {
  Call c = Call::dense();
  c.args.q = c.f32({5, 4, 8});
  expect_refused(c, "q [5, 4, 8] has 3 dimensions", "4 dimensions: [batch, seqlen, heads, head_dim]");
  Call d = Call::packed();
  d.bind_packed();
  d.args.q = d.f32({1, 8, 4, 8});
  expect_refused(d, "q [1, 8, 4, 8] has 4 dimensions", "3 dimensions: [total_q, heads, head_dim]");
}

TEST(validate, rank_outside_the_view_is_refused) {
  for (TensorView ForwardArguments::*member : {&ForwardArguments::k, &ForwardArguments::softmax_lse}) {
    for (const int rank : {9, -1}) {
      Call c = Call::dense();
      (c.args.*member).rank = rank;
      const char* name = member == &ForwardArguments::k ? "k" : "softmax_lse";
      expect_refused(c, std::string(name) + " has rank " + std::to_string(rank), "rank 1 to 5");
    }
  }
}

TEST(validate, dtypes_are_checked) {
  Call c = Call::dense();
  c.args.q.dtype = DType::I32;
  expect_refused(c, "q has dtype i32", "f32, f16, bf16");
  Call d = Call::dense();
  d.args.k.dtype = DType::BF16;
  expect_refused(d, "k has dtype bf16", "f32, f8e4m3, f8e5m2, i8");
  Call e = Call::dense();
  e.args.out.dtype = DType::F16;
  expect_refused(e, "out has dtype f16", "f32 (q's dtype)");
  Call f = Call::dense();
  f.args.softmax_lse.dtype = DType::F16;
  expect_refused(f, "softmax_lse has dtype f16", "f32");
  Call g = Call::dense();
  g.args.v.dtype = DType::F8E4M3;
  expect_refused(g, "v has dtype f8e4m3", "f32 (k's dtype)");
}

TEST(validate, index_tensors_are_int32) {
  Call c = Call::packed();
  c.bind_packed();
  c.args.cu_seqlens_k.dtype = DType::F32;
  expect_refused(c, "cu_seqlens_k has dtype f32", "i32 (index tensors are int32)");
}

TEST(validate, heads_and_head_dim_have_limits) {
  Call c = Call::dense();
  c.args.q = make_view(c.memory.data(), DType::F32, {2, 5, 0, 8});
  expect_refused(c, "q [2, 5, 0, 8] has no heads", "1 head or more");
  Call d = Call::dense();
  d.args.q = make_view(d.memory.data(), DType::F32, {1, 1, 1, 2000});
  expect_refused(d, "q [1, 1, 1, 2000] has head_dim 2000", "head_dim 1 to 1024");
  Call e = Call::dense();
  e.args.k = e.f32({2, 6, 0, 8});
  e.args.v = e.f32({2, 6, 0, 4});
  expect_refused(e, "q has 4 heads, but k has 0", "a multiple of key heads");
}

TEST(validate, written_tensors_may_not_overlap_themselves) {
  Call c = Call::dense();
  c.args.out.strides = {80, 16, 0, 1};
  expect_refused(c, "out [2, 5, 4, 4] with strides [80, 16, 0, 1", "an address of its own");
  Call d = Call::dense();
  d.args.softmax_lse.strides = {20, 5, 0};
  expect_refused(d, "softmax_lse", "an address of its own");
}

TEST(validate, broadcast_inputs_are_fine) {
  Call c = Call::dense();
  c.args.k.strides = {0, 16, 0, 1};
  EXPECT_NO_THROW(c.validate());
}

TEST(validate, spans_beyond_the_address_space_are_refused) {
  Call c = Call::dense();
  c.args.k.strides[1] = std::int64_t{1} << 61;
  expect_refused(c, "spans more than 2^56 bytes", "within 2^56 bytes");
  Call d = Call::dense();
  d.args.q.shape[0] = std::int64_t{1} << 62;
  expect_refused(d, "spans more than 2^56 bytes", "within 2^56 bytes");
  Call e = Call::dense();
  e.args.q.shape[1] = -5;
  expect_refused(e, "q [2, -5, 4, 8] has a negative extent", "0 or more");
}

TEST(validate, tensors_live_on_one_device) {
  Call c = Call::dense();
  c.args.v.device = DeviceKind::Cuda;
  c.args.v.device_idx = 1;
  expect_refused(c, "v is on GPU 1, but q is on the CPU", "one device");
}

TEST(validate, null_and_misaligned_addresses_are_refused) {
  Call c = Call::dense();
  c.args.k.data = nullptr;
  expect_refused(c, "k [2, 6, 2, 8] has 192 elements, but a null data pointer", "the address of element");
  Call d = Call::dense();
  d.args.q.data = reinterpret_cast<char*>(d.memory.data()) + 2;
  expect_refused(d, "q starts at address 0x", "multiple of 4");
}

TEST(validate, out_may_not_start_where_an_input_starts) {
  Call c = Call::dense();
  c.args.out.data = c.memory.data();
  expect_refused(c, "out and q start at the same address", "memory of its own");
}

TEST(validate, offsets_must_not_decrease) {
  Call c = Call::packed();
  c.cu_q = {0, 9, 8};
  c.bind_packed();
  expect_refused(c, "cu_seqlens_q[2] is 8, but cu_seqlens_q[1] is 9", "never decrease");
  Call d = Call::packed();
  d.cu_k = {-1, 4, 10};
  d.bind_packed();
  expect_refused(d, "cu_seqlens_k[0] is -1", "start at 0 or more");
}

TEST(validate, offsets_must_end_inside_the_tensor) {
  Call c = Call::packed();
  c.cu_k = {0, 4, 11};
  c.bind_packed();
  expect_refused(c, "cu_seqlens_k[2] is 11, but k has 10 rows", "up to the rows of k");
}

TEST(validate, offset_counts_must_match_the_batch) {
  Call c = Call::packed();
  c.cu_k = {0, 4, 6, 10};
  c.bind_packed();
  expect_refused(c, "cu_seqlens_k [4] has extent 4 in dimension 0, but the batch is 2", "3 there");
  Call d = Call::packed();
  d.cu_q = {};
  d.bind_packed();
  expect_refused(d, "cu_seqlens_q is empty", "[batch + 1] offsets");
}

TEST(validate, used_lengths_fit_their_room) {
  Call c = Call::packed();
  c.used_q = {3, 6};
  c.bind_packed();
  c.args.seqused_q = Call::index(c.used_q);
  expect_refused(c, "seqused_q[1] is 6, but sequence 1 has room for 5 rows", "0 to 5");
  Call d = Call::dense();
  d.used_k = {-2, 6};
  d.args.seqused_k = Call::index(d.used_k);
  expect_refused(d, "seqused_k[0] is -2", "0 to 6");
  Call e = Call::dense();
  e.used_k = {1};
  e.args.seqused_k = Call::index(e.used_k);
  expect_refused(e, "seqused_k [1] has extent 1", "2 there");
}

TEST(validate, a_length_past_the_table_is_refused) {
  Call c = Call::paged();
  c.used_k = {4, 7};
  c.bind_paged();
  expect_refused(c, "seqused_k[1] is 7, but sequence 1 has room for 6 rows (2 pages of 3)", "0 to 6");
}

TEST(validate, a_page_out_of_the_pool_is_refused_only_where_it_is_used) {
  for (const std::int32_t page : {4, -1, std::numeric_limits<std::int32_t>::max()}) {
    Call c = Call::paged();
    c.table = {0, 2, page, 3};
    c.bind_paged();
    expect_refused(c, "block_table[1][0] is " + std::to_string(page) + ", but the pool has 4 pages",
                   "0 to 3");
  }
  Call d = Call::paged();
  d.used_k = {3, 2};
  d.table = {0, -1, 1, std::numeric_limits<std::int32_t>::max()};
  d.bind_paged();
  EXPECT_NO_THROW(d.validate());
}

TEST(validate, paged_keys_need_lengths_and_exclude_offsets) {
  Call c = Call::paged();
  c.bind_paged();
  c.args.seqused_k = {};
  expect_refused(c, "block_table is given without seqused_k", "need seqused_k");
  Call d = Call::paged();
  d.bind_paged();
  d.args.cu_seqlens_k = Call::index(d.cu_k);
  expect_refused(d, "both block_table and cu_seqlens_k", "not both");
}

TEST(validate, page_size_is_at_least_one) {
  Call c = Call::paged();
  c.bind_paged();
  c.args.k = make_view(c.memory.data(), DType::F32, {4, 0, 2, 8});
  c.args.v = make_view(c.memory.data(), DType::F32, {4, 0, 2, 4});
  expect_refused(c, "has page_size 0", "page_size 1 or more");
}

TEST(validate, length_bounds_hold) {
  Call c = Call::packed();
  c.bind_packed();
  c.options.max_seqlen_q = 4;
  expect_refused(c, "sequence 1 has 5 rows of q, but max_seqlen_q is 4", "up to max_seqlen_q");
  Call d = Call::packed();
  d.bind_packed();
  d.options.max_seqlen_k = -3;
  expect_refused(d, "max_seqlen_k is -3", "0 to 2^40");
}

TEST(validate, bounds_are_needed_when_offsets_cannot_be_read) {
  Call c = Call::packed();
  c.bind_packed();
  c.args.cu_seqlens_q.data = nullptr;
  expect_refused(c, "max_seqlen_q is not given, and cu_seqlens_q cannot be read here",
                 "an upper bound in max_seqlen_q");
}

TEST(validate, scale_softcap_and_windows_have_ranges) {
  for (const double scale : {std::numeric_limits<double>::infinity(), std::nan(""), 1e31}) {
    Call c = Call::dense();
    c.options.softmax_scale = scale;
    expect_refused(c, "softmax_scale is ", "any finite number");
  }
  for (const double softcap : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    Call c = Call::dense();
    c.options.softcap = softcap;
    expect_refused(c, "softcap is ", "0 (none), or a positive number");
  }
  Call c = Call::dense();
  c.options.window_left = -2;
  expect_refused(c, "window_left is -2", "-1 for no limit");
}

TEST(validate, zero_and_negative_scales_are_allowed) {
  for (const double scale : {0.0, -0.5}) {
    Call c = Call::dense();
    c.options.softmax_scale = scale;
    EXPECT_NO_THROW(c.validate());
  }
}

TEST(validate, score_terms_have_shapes) {
  Call a = Call::dense();
  a.args.alibi_slopes = a.f32({3});
  expect_refused(a, "alibi_slopes [3]", "[4]");
  Call b = Call::dense();
  b.args.alibi_slopes = b.f32({1, 4});
  expect_refused(b, "alibi_slopes [1, 4]", "[2, 4]");
  Call c = Call::dense();
  c.args.sinks = c.f32({2});
  expect_refused(c, "sinks [2]", "[4]");
  Call d = Call::dense();
  d.args.bias = d.f32({2, 2, 5, 6});
  expect_refused(d, "bias [2, 2, 5, 6] does not cover batch 2, heads_q 4, seqlen_q 5, seqlen_k 6",
                 "[batch or 1, heads_q or 1");
  Call e = Call::dense();
  e.args.bias = e.f32({1, 1, 5, 5});
  expect_refused(e, "bias [1, 1, 5, 5]", "at least seqlen_k");
  Call f = Call::dense();
  f.args.k_descale = f.f32({3});
  expect_refused(f, "k_descale has shape [3]", "[1], [heads_k = 2] or [batch = 2, heads_k = 2]");
  Call g = Call::dense();
  g.args.bias = g.f32({1, 1, 5, 6});
  g.args.bias.dtype = DType::BF16;
  expect_refused(g, "bias has dtype bf16", "f32");
}

TEST(validate, factors_of_pages_need_pages_of_8_bits_and_an_extent_of_1) {
  const auto eight_bits = [] {
    Call c = Call::paged();
    c.args.cu_seqlens_q = Call::index(c.cu_q);
    c.args.block_table = make_view(c.table.data(), DType::I32, {2, 2});
    c.args.seqused_k = Call::index(c.used_k);
    c.args.k.dtype = c.args.v.dtype = DType::I8;
    return c;
  };
  for (const std::int64_t heads : {1, 2}) {
    Call c = eight_bits();
    c.args.k_descale = c.f32({4, 1, heads});
    EXPECT_NO_THROW(c.validate());
  }
  Call dense = Call::dense();
  dense.args.v_descale = dense.f32({4, 1, 2});
  expect_refused(dense, "v_descale [4, 1, 2] has factors of pages, but keys are not paged",
                 "with block_table");
  Call wide = eight_bits();
  wide.args.k.dtype = wide.args.v.dtype = DType::F32;
  wide.args.k_descale = wide.f32({4, 1, 2});
  expect_refused(wide, "k_descale [4, 1, 2] has factors of pages, but pages hold f32", "f8 or i8");
  Call short_of_pages = eight_bits();
  short_of_pages.args.k_descale = short_of_pages.f32({3, 1, 2});
  expect_refused(short_of_pages, "k_descale has shape [3, 1, 2]",
                 "of pages [pages = 4, 1, heads_k = 2 or 1]");
  Call without_one = eight_bits();
  without_one.args.k_descale = without_one.f32({4, 2});
  expect_refused(without_one, "k_descale has shape [4, 2]", "with an extent of 1 after them");
}

TEST(validate, threads_and_splits_have_ranges) {
  Call c = Call::dense();
  c.options.num_threads = -1;
  expect_refused(c, "num_threads is -1", "0 (every core) to 4096");
  Call d = Call::dense();
  d.options.num_splits = 5000;
  expect_refused(d, "num_splits is 5000", "to 1024");
}

TEST(validate, batch_invariant_calls_have_parts_of_their_own_and_a_bound) {
  Call c = Call::dense();
  c.options.batch_invariant = true;
  const AttentionProblem problem = validate_problem("forward", c.args, c.options);
  EXPECT_TRUE(problem.batch_invariant);
  EXPECT_TRUE(options_of(problem).batch_invariant);
  c.options.num_splits = 2;
  expect_refused(c, "num_splits is 2, with batch_invariant",
                 "parts of a batch-invariant call have 2048 keys");
  Call paged = Call::paged();
  paged.bind_paged();
  paged.options.batch_invariant = true;
  paged.args.block_table.shape[1] = 1 << 20;
  paged.args.block_table.strides[1] = 0;
  paged.options.max_seqlen_k = 3 << 20;
  expect_refused(paged, "seqlen_k is up to 3145728, with batch_invariant", "up to 2097152 keys");
}

TEST(validate, a_plan_is_for_its_own_shapes) {
  Call c = Call::dense();
  const AttentionProblem problem = validate_problem("plan", c.args, c.options);
  c.args.q = c.f32({2, 4, 4, 8});
  c.args.out = c.written({2, 4, 4, 4});
  c.args.softmax_lse = c.written({2, 4, 4});
  const std::string message = message_of([&] { validate_run("run", problem, c.args); });
  EXPECT_THAT(message, HasSubstr("but the plan is for"));
  EXPECT_THAT(message, HasSubstr("make a plan for these tensors"));
}

TEST(validate, tensors_differ_in_more_than_their_data) {
  const Call c = Call::dense(), other_memory = Call::dense();
  ASSERT_NE(c.args.q.data, other_memory.args.q.data);
  EXPECT_TRUE(same_but_data(c.args, other_memory.args));
  const std::function<void(TensorView&)> changes[] = {[](TensorView& t) { t.dtype = DType::F16; },
                                                      [](TensorView& t) { t.rank = 0; },
                                                      [](TensorView& t) { t.shape[1] += 1; },
                                                      [](TensorView& t) { t.strides[0] += 8; },
                                                      [](TensorView& t) { t.device = DeviceKind::Cuda; },
                                                      [](TensorView& t) { t.device_idx = 1; }};
  for (const auto& change : changes) {
    for (TensorView ForwardArguments::*tensor : {&ForwardArguments::q, &ForwardArguments::softmax_lse}) {
      ForwardArguments args = c.args;
      change(args.*tensor);
      EXPECT_FALSE(same_but_data(c.args, args));
    }
  }
  ForwardArguments args = c.args;
  args.sinks = make_view(nullptr, DType::F32, {4});
  EXPECT_FALSE(same_but_data(c.args, args));
}

struct MergeCall {
  std::vector<float> a = std::vector<float>(64), b = std::vector<float>(64), c = std::vector<float>(64);
  std::vector<float> la = std::vector<float>(16), lb = std::vector<float>(16), lc = std::vector<float>(16);
  MergeArguments args;
  MergeCall() {
    args.out_a = make_view(a.data(), DType::F32, {1, 3, 2, 4});
    args.out_b = make_view(b.data(), DType::F32, {1, 3, 2, 4});
    args.out = make_view(c.data(), DType::F32, {1, 3, 2, 4});
    args.lse_a = make_view(la.data(), DType::F32, {1, 2, 3});
    args.lse_b = make_view(lb.data(), DType::F32, {1, 2, 3});
    args.lse = make_view(lc.data(), DType::F32, {1, 2, 3});
  }
  std::string refusal(int num_threads = 0) {
    return message_of([&] { validate_merge("merge", args, num_threads); });
  }
};

TEST(validate, merge_checks_shapes_dtypes_and_addresses) {
  MergeCall correct;
  EXPECT_EQ(correct.refusal(), "no error");
  EXPECT_EQ(correct.refusal(4096), "no error");
  EXPECT_THAT(correct.refusal(-1), HasSubstr("num_threads is -1"));
  EXPECT_THAT(correct.refusal(4097), HasSubstr("0 (every core) to 4096"));
  MergeCall a;
  a.args.lse_a = {};
  EXPECT_THAT(a.refusal(), HasSubstr("lse_a is missing"));
  MergeCall b;
  b.args.out_b.shape[1] = 4;
  EXPECT_THAT(b.refusal(),
              HasSubstr("out_b [1, 4, 2, 4] has extent 4 in dimension 1, but out is [1, 3, 2, 4]"));
  MergeCall c;
  c.args.lse_b = make_view(c.lb.data(), DType::F32, {1, 3, 2});
  EXPECT_THAT(c.refusal(), HasSubstr("lse_b [1, 3, 2]"));
  MergeCall d;
  d.args.out.dtype = DType::F8E4M3;
  EXPECT_THAT(d.refusal(), HasSubstr("out has dtype f8e4m3"));
  MergeCall e;
  e.args.out.strides = {24, 8, 0, 1};
  EXPECT_THAT(e.refusal(), HasSubstr("elements that share memory"));
  MergeCall f;
  f.args.out_a.data = nullptr;
  EXPECT_THAT(f.refusal(), HasSubstr("null data pointer"));
  MergeCall g;
  g.args.out_a.device = DeviceKind::Cuda;
  EXPECT_THAT(g.refusal(), HasSubstr("out_a is on GPU 0, but out is on the CPU"));
}

}  // namespace
}  // namespace onepass
