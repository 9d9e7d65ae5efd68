// The C interface as its callers see it: statuses, messages, defaults, sizes. Results are checked on inputs
// whose answers are known exactly (q = 0 makes attention the mean of the visible values).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "onepass/onepass.h"
#include "onepass/plan.h"
#include "support/float_types.h"

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using ::testing::StartsWith;

const float kNan = std::numeric_limits<float>::quiet_NaN();

onepass_tensor tensor(const void* data, std::int32_t dtype, const std::vector<std::int64_t>& shape) {
  onepass_tensor t = ONEPASS_TENSOR_INIT;
  EXPECT_EQ(
      onepass_tensor_make(data, dtype, static_cast<std::int32_t>(shape.size()), shape.data(), nullptr, &t),
      ONEPASS_OK)
      << onepass_last_error_message();
  return t;
}

/// Two queries of zeros, five keys, values j + 1, two heads over one; bottom-right causal.
class CApi : public ::testing::Test {
 protected:
  static constexpr std::int64_t kSeqlenQ = 2, kSeqlenK = 5, kHeadsQ = 2, kHeadDim = 8;

  CApi() {
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / kHeadDim + 1);
    q_tensor = tensor(q.data(), ONEPASS_DTYPE_F32, {1, kSeqlenQ, kHeadsQ, kHeadDim});
    k_tensor = tensor(k.data(), ONEPASS_DTYPE_F32, {1, kSeqlenK, 1, kHeadDim});
    v_tensor = tensor(v.data(), ONEPASS_DTYPE_F32, {1, kSeqlenK, 1, kHeadDim});
    out_tensor = tensor(out.data(), ONEPASS_DTYPE_F32, {1, kSeqlenQ, kHeadsQ, kHeadDim});
    lse_tensor = tensor(lse.data(), ONEPASS_DTYPE_F32, {1, kHeadsQ, kSeqlenQ});
    args.q = &q_tensor;
    args.k = &k_tensor;
    args.v = &v_tensor;
    args.out = &out_tensor;
    args.softmax_lse = &lse_tensor;
    options.causal = ONEPASS_CAUSAL_BOTTOM_RIGHT;
  }
  ~CApi() override { onepass_plan_destroy(plan); }

  void expect_causal_means() {
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_FLOAT_EQ(out[i], i < out.size() / 2 ? 2.5f : 3.0f);
    EXPECT_THAT(lse, Pointwise(FloatNear(1e-6f), {1.386294f, 1.609438f, 1.386294f, 1.609438f}));
  }
  void expect_nothing_written() {
    for (const float value : out) EXPECT_TRUE(std::isnan(value));
    for (const float value : lse) EXPECT_TRUE(std::isnan(value));
  }
  void create_plan() {
    ASSERT_EQ(onepass_plan_create(&args, &options, nullptr, &plan), ONEPASS_OK)
        << onepass_last_error_message();
    ASSERT_EQ(onepass_plan_workspace_bytes(plan, &bytes), ONEPASS_OK);
  }

  std::vector<float> q = std::vector<float>(kSeqlenQ * kHeadsQ * kHeadDim, 0.0f);
  std::vector<float> k = std::vector<float>(kSeqlenK * kHeadDim, 1.5f), v = k;
  std::vector<float> out = std::vector<float>(q.size(), kNan),
                     lse = std::vector<float>(kSeqlenQ * kHeadsQ, kNan);
  onepass_tensor q_tensor, k_tensor, v_tensor, out_tensor, lse_tensor;
  onepass_forward_args args = ONEPASS_FORWARD_ARGS_INIT;
  onepass_forward_options options = ONEPASS_FORWARD_OPTIONS_INIT;
  onepass_plan* plan = nullptr;
  std::size_t bytes = 0;
};

struct AlignedDelete {
  void operator()(char* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
};
using AlignedMemory = std::unique_ptr<char[], AlignedDelete>;

AlignedMemory aligned_memory(std::size_t bytes) {
  return AlignedMemory(static_cast<char*>(::operator new[](bytes, std::align_val_t{64})));
}

TEST_F(CApi, forward_computes_and_leaves_no_message) {
  ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_STREQ(onepass_last_error_message(), "");
  expect_causal_means();
}

TEST_F(CApi, forward_without_options_sees_every_key) {
  ASSERT_EQ(onepass_forward(&args, nullptr), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_THAT(out, Each(FloatNear(3.0f, 1e-6f)));
}

/// dout = 1, so that dv of a key is the sum of its probabilities.
class CApiBackward : public CApi {
 protected:
  CApiBackward() {
    EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_OK) << onepass_last_error_message();
    dout_tensor = tensor(dout.data(), ONEPASS_DTYPE_F32, {1, kSeqlenQ, kHeadsQ, kHeadDim});
    dq_tensor = tensor(dq.data(), ONEPASS_DTYPE_F32, {1, kSeqlenQ, kHeadsQ, kHeadDim});
    dk_tensor = tensor(dk.data(), ONEPASS_DTYPE_F32, {1, kSeqlenK, 1, kHeadDim});
    dv_tensor = tensor(dv.data(), ONEPASS_DTYPE_F32, {1, kSeqlenK, 1, kHeadDim});
    backward.forward = &args;
    backward.dout = &dout_tensor;
    backward.dq = &dq_tensor;
    backward.dk = &dk_tensor;
    backward.dv = &dv_tensor;
  }
  void expect_gradients() {
    EXPECT_THAT(dq, Each(FloatNear(0.0f, 1e-6f)));
    EXPECT_THAT(dk, Each(FloatNear(0.0f, 1e-6f)));
    for (std::size_t i = 0; i < dv.size(); ++i)
      EXPECT_NEAR(dv[i], i < 4 * kHeadDim ? 0.9f : 0.4f, 1e-6f) << i;
  }

  std::vector<float> dout = std::vector<float>(q.size(), 1.0f), dq = std::vector<float>(q.size(), kNan);
  std::vector<float> dk = std::vector<float>(k.size(), kNan), dv = dk;
  onepass_tensor dout_tensor, dq_tensor, dk_tensor, dv_tensor;
  onepass_backward_args backward = ONEPASS_BACKWARD_ARGS_INIT;
};

TEST_F(CApiBackward, computes_gradients) {
  ASSERT_EQ(onepass_backward(&backward, &options), ONEPASS_OK) << onepass_last_error_message();
  expect_gradients();
}

TEST_F(CApiBackward, a_plan_runs_in_a_workspace_of_its_size_and_not_in_less) {
  ASSERT_EQ(onepass_backward_plan_create(&backward, &options, nullptr, &plan), ONEPASS_OK)
      << onepass_last_error_message();
  ASSERT_EQ(onepass_plan_workspace_bytes(plan, &bytes), ONEPASS_OK);
  ASSERT_GT(bytes, 0u);
  const AlignedMemory memory = aligned_memory(bytes);
  EXPECT_EQ(onepass_backward_plan_run(plan, &backward, memory.get(), bytes - 1), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("workspace has"));
  EXPECT_TRUE(std::isnan(dq[0]));
  ASSERT_EQ(onepass_backward_plan_run(plan, &backward, memory.get(), bytes), ONEPASS_OK)
      << onepass_last_error_message();
  expect_gradients();
  EXPECT_EQ(onepass_plan_run(plan, &args, memory.get(), bytes), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("the plan is for"));
}

TEST_F(CApiBackward, forward_arguments_are_required) {
  backward.forward = nullptr;
  EXPECT_EQ(onepass_backward(&backward, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("args->forward is NULL"));
}

TEST_F(CApi, every_option_reaches_the_computation) {
  options.causal = ONEPASS_CAUSAL_TOP_LEFT;
  ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK);
  EXPECT_FLOAT_EQ(out.front(), 1.0f);
  EXPECT_FLOAT_EQ(out.back(), 1.5f);

  options.causal = ONEPASS_CAUSAL_NONE;
  options.window_left = 1;
  options.window_right = 0;
  ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK);
  EXPECT_FLOAT_EQ(out.front(), 3.5f);
  EXPECT_FLOAT_EQ(out.back(), 4.5f);

  // Scores 12 everywhere by q = 1, k = 1.5: scaled to -3, capped at 2: 2 tanh(-1.5).
  std::fill(q.begin(), q.end(), 1.0f);
  options.has_softmax_scale = 1;
  options.softmax_scale = -0.25;
  options.softcap = 2.0;
  options.backend = ONEPASS_BACKEND_REFERENCE;
  options.num_threads = 1;
  options.num_splits = 1;
  ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_NEAR(lse[0], 2 * std::tanh(-1.5) + std::log(2.0), 1e-6);
  ASSERT_EQ(onepass_plan_create(&args, &options, nullptr, &plan), ONEPASS_OK);
  const char* text = nullptr;
  ASSERT_EQ(onepass_plan_explain(plan, &text), ONEPASS_OK);
  EXPECT_THAT(text, HasSubstr("cpu_reference"));
}

TEST_F(CApi, packed_sequences_have_their_bounds_read_or_given) {
  const std::array<std::int32_t, 2> cu_q = {0, 2}, cu_k = {0, 5};
  onepass_tensor cu_q_tensor = tensor(cu_q.data(), ONEPASS_DTYPE_I32, {2});
  onepass_tensor cu_k_tensor = tensor(cu_k.data(), ONEPASS_DTYPE_I32, {2});
  q_tensor = tensor(q.data(), ONEPASS_DTYPE_F32, {kSeqlenQ, kHeadsQ, kHeadDim});
  k_tensor = tensor(k.data(), ONEPASS_DTYPE_F32, {kSeqlenK, 1, kHeadDim});
  v_tensor = tensor(v.data(), ONEPASS_DTYPE_F32, {kSeqlenK, 1, kHeadDim});
  out_tensor = tensor(out.data(), ONEPASS_DTYPE_F32, {kSeqlenQ, kHeadsQ, kHeadDim});
  lse_tensor = tensor(lse.data(), ONEPASS_DTYPE_F32, {kHeadsQ, kSeqlenQ});
  args.cu_seqlens_q = &cu_q_tensor;
  args.cu_seqlens_k = &cu_k_tensor;
  ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK) << onepass_last_error_message();
  expect_causal_means();

  options.max_seqlen_k = 4;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("sequence 0 has 5 rows of k, but max_seqlen_k is 4"));
  options.max_seqlen_k = -2;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("max_seqlen_k is -2"));
}

TEST_F(CApi, a_broken_rule_is_an_invalid_argument_in_the_three_line_form_and_writes_nothing) {
  k_tensor.shape[2] = 3;
  v_tensor.shape[2] = 3;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(
      onepass_last_error_message(),
      AllOf(StartsWith("onepass_forward: q has 2 heads, but k has 3 (q [1, 2, 2, 8], k [1, 5, 3, 8]).\n"
                       "  Allowed: "),
            HasSubstr("\n  Fix: "), EndsWith(".")));
  expect_nothing_written();
}

TEST_F(CApi, what_no_implementation_takes_is_not_supported_with_the_reasons) {
  options.backend = ONEPASS_BACKEND_CUDA;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_NOT_SUPPORTED);
  EXPECT_THAT(onepass_last_error_message(),
              AllOf(StartsWith("onepass_forward: "), HasSubstr("sm80_forward declines"),
                    HasSubstr("cpu_simd declines")));
  expect_nothing_written();
}

TEST_F(CApi, absent_tensors_are_null_or_of_rank_zero) {
  lse_tensor.rank = 0;
  ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK) << onepass_last_error_message();
  args.softmax_lse = nullptr;
  ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_TRUE(std::isnan(lse[0]));
  args.k = nullptr;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), StartsWith("onepass_forward: k is missing."));
  args.k = &k_tensor;
  q_tensor.rank = -2;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), StartsWith("onepass_forward: q has rank -2."));
}

TEST_F(CApi, numbers_outside_an_enumeration_are_refused_by_the_fields_name) {
  const auto message = [&] {
    EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
    return std::string(onepass_last_error_message());
  };
  k_tensor.dtype = 17;
  EXPECT_THAT(message(), AllOf(HasSubstr("k.dtype is 17"), HasSubstr("2 (bf16)")));
  k_tensor.dtype = ONEPASS_DTYPE_F32;
  v_tensor.device = -1;
  EXPECT_THAT(message(), AllOf(HasSubstr("v.device is -1"), HasSubstr("0 (CPU), 1 (CUDA)")));
  v_tensor.device = ONEPASS_DEVICE_CPU;
  q_tensor.rank = 6;
  EXPECT_THAT(message(), HasSubstr("q has rank 6"));
  q_tensor.rank = -1;
  EXPECT_THAT(message(), HasSubstr("q"));
  q_tensor.rank = 4;
  options.causal = 3;
  EXPECT_THAT(message(), AllOf(HasSubstr("causal is 3"), HasSubstr("1 (bottom-right)")));
  options.causal = 0;
  options.backend = 4;
  EXPECT_THAT(message(), AllOf(HasSubstr("backend is 4"), HasSubstr("2 (reference)")));
  options.backend = 0;
  options.batch_invariant = 2;
  EXPECT_THAT(message(), HasSubstr("batch_invariant is 2"));
  expect_nothing_written();
}

TEST_F(CApi, a_scale_without_its_flag_is_refused_instead_of_ignored) {
  options.softmax_scale = 0.5;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(),
              AllOf(HasSubstr("softmax_scale is 0.5, but has_softmax_scale is 0"),
                    HasSubstr("set has_softmax_scale to 1")));
}

TEST_F(CApi, a_stream_means_nothing_to_the_cpu) {
  int not_a_stream = 0;
  args.stream = &not_a_stream;
  ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK) << onepass_last_error_message();
  expect_causal_means();
}

TEST_F(CApi, callers_from_before_there_were_streams_are_served) {
  onepass_forward_args old_args;
  std::memset(&old_args, 0xab, sizeof(old_args));
  std::memcpy(&old_args, &args, offsetof(onepass_forward_args, stream));
  old_args.struct_size = offsetof(onepass_forward_args, stream);
  ASSERT_EQ(onepass_forward(&old_args, &options), ONEPASS_OK) << onepass_last_error_message();
  expect_causal_means();
}

TEST_F(CApi, structs_of_an_older_caller_get_defaults_for_what_they_lack) {
  // Everything past struct_size is garbage that must not be read.
  onepass_forward_options old_options;
  std::memset(&old_options, 0xab, sizeof(old_options));
  old_options.struct_size = offsetof(onepass_forward_options, softmax_scale);
  old_options.causal = ONEPASS_CAUSAL_BOTTOM_RIGHT;
  old_options.has_softmax_scale = 0;
  onepass_forward_args old_args;
  std::memset(&old_args, 0xab, sizeof(old_args));
  std::memcpy(&old_args, &args, offsetof(onepass_forward_args, cu_seqlens_q));
  old_args.struct_size = offsetof(onepass_forward_args, cu_seqlens_q);
  v_tensor.struct_size = offsetof(onepass_tensor, device);
  v_tensor.device = 1000;
  ASSERT_EQ(onepass_forward(&old_args, &old_options), ONEPASS_OK) << onepass_last_error_message();
  expect_causal_means();
}

TEST_F(CApi, structs_of_a_newer_caller_are_taken_when_their_new_fields_are_zero) {
  struct {
    onepass_forward_options known;
    std::int64_t newer;
  } large = {options, 0};
  large.known.struct_size = sizeof(large);
  ASSERT_EQ(onepass_forward(&args, &large.known), ONEPASS_OK) << onepass_last_error_message();
  expect_causal_means();
  large.newer = 1;
  EXPECT_EQ(onepass_forward(&args, &large.known), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), AllOf(StartsWith("onepass_forward: options has struct_size 88"),
                                                  HasSubstr("byte 80 is not zero")));
}

TEST_F(CApi, a_struct_without_its_size_is_refused_by_name) {
  args.struct_size = 0;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(),
              AllOf(HasSubstr("args has struct_size 0"), HasSubstr("_INIT macro")));
  args.struct_size = sizeof(args);
  v_tensor.struct_size = 4;
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("v has struct_size 4"));
}

TEST_F(CApi, options_init_writes_what_the_macro_does_and_no_more_than_asked) {
  const onepass_forward_options defaults = ONEPASS_FORWARD_OPTIONS_INIT;
  std::memset(&options, 0xab, sizeof(options));
  ASSERT_EQ(onepass_forward_options_init(&options, sizeof(options)), ONEPASS_OK);
  EXPECT_EQ(std::memcmp(&options, &defaults, sizeof(options)), 0);

  std::memset(&options, 0xab, sizeof(options));
  ASSERT_EQ(onepass_forward_options_init(&options, 16), ONEPASS_OK);
  EXPECT_EQ(options.struct_size, 16u);
  EXPECT_EQ(options.causal, 0);
  EXPECT_NE(options.softmax_scale, 0.0);
  EXPECT_EQ(onepass_forward_options_init(&options, 3), ONEPASS_INVALID_ARGUMENT);
}

TEST_F(CApi, null_pointers_are_refused_by_name) {
  const std::int64_t shape[] = {1};
  onepass_tensor t = ONEPASS_TENSOR_INIT;
  const char* text = nullptr;
  create_plan();
  const struct {
    onepass_status status;
    std::string message;
    const char* expected;
  } rows[] = {
#define ROW(call, expected) {call, onepass_last_error_message(), expected}
      ROW(onepass_forward(nullptr, nullptr), "onepass_forward: args is NULL"),
      ROW(onepass_forward_options_init(nullptr, 8), "onepass_forward_options_init: options is NULL"),
      ROW(onepass_tensor_make(nullptr, 0, 1, nullptr, nullptr, &t), "onepass_tensor_make: shape is NULL"),
      ROW(onepass_tensor_make(nullptr, 0, 1, shape, nullptr, nullptr), "onepass_tensor_make: tensor is NULL"),
      ROW(onepass_tensor_from_dlpack(nullptr, &t), "onepass_tensor_from_dlpack: dl_tensor is NULL"),
      ROW(onepass_tensor_from_dlpack(&t, nullptr), "onepass_tensor_from_dlpack: tensor is NULL"),
      ROW(onepass_plan_create(&args, nullptr, nullptr, nullptr), "onepass_plan_create: plan is NULL"),
      ROW(onepass_plan_workspace_bytes(nullptr, &bytes), "onepass_plan_workspace_bytes: plan is NULL"),
      ROW(onepass_plan_workspace_bytes(plan, nullptr), "onepass_plan_workspace_bytes: bytes is NULL"),
      ROW(onepass_plan_explain(nullptr, &text), "onepass_plan_explain: plan is NULL"),
      ROW(onepass_plan_explain(plan, nullptr), "onepass_plan_explain: text is NULL"),
      ROW(onepass_plan_run(nullptr, &args, nullptr, 0), "onepass_plan_run: plan is NULL"),
      ROW(onepass_plan_run(plan, nullptr, nullptr, 0), "onepass_plan_run: args is NULL"),
      ROW(onepass_plan_run(plan, &args, nullptr, 64),
          "onepass_plan_run: workspace is NULL, but workspace_bytes is 64"),
      ROW(onepass_workspace_bytes(&args, nullptr, nullptr, nullptr),
          "onepass_workspace_bytes: bytes is NULL"),
      ROW(onepass_merge(nullptr, 0), "onepass_merge: args is NULL"),
      ROW(onepass_cascade(nullptr, nullptr), "onepass_cascade: args is NULL"),
      ROW(onepass_cascade_plan_create(nullptr, nullptr, nullptr, nullptr),
          "onepass_cascade_plan_create: plan is NULL"),
      ROW(onepass_append_kv(nullptr, 0), "onepass_append_kv: args is NULL"),
#undef ROW
  };
  for (const auto& row : rows) {
    EXPECT_EQ(row.status, ONEPASS_INVALID_ARGUMENT) << row.expected;
    EXPECT_THAT(row.message, StartsWith(row.expected));
  }
  onepass_plan_destroy(nullptr);
}

TEST_F(CApi, a_plan_runs_in_exactly_its_workspace_and_not_in_a_byte_less) {
  create_plan();
  ASSERT_GT(bytes, 0u);
  constexpr std::size_t kCanary = 64;
  const AlignedMemory workspace = aligned_memory(bytes + kCanary);
  std::memset(workspace.get(), 0x5a, bytes + kCanary);
  ASSERT_EQ(onepass_plan_run(plan, &args, workspace.get(), bytes), ONEPASS_OK)
      << onepass_last_error_message();
  expect_causal_means();
  for (std::size_t i = bytes; i < bytes + kCanary; ++i) EXPECT_EQ(workspace[i], 0x5a);

  std::fill(out.begin(), out.end(), kNan);
  std::fill(lse.begin(), lse.end(), kNan);
  EXPECT_EQ(onepass_plan_run(plan, &args, workspace.get(), bytes - 1), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(),
              StartsWith("onepass_plan_run: workspace has " + std::to_string(bytes - 1)));
  EXPECT_EQ(onepass_plan_run(plan, &args, workspace.get() + 8, bytes), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("no multiple of 64"));
  EXPECT_EQ(onepass_plan_run(plan, &args, nullptr, 0), ONEPASS_INVALID_ARGUMENT);
  expect_nothing_written();
}

TEST_F(CApi, a_plan_refuses_other_tensors_than_it_was_made_for) {
  create_plan();
  const AlignedMemory workspace = aligned_memory(bytes);
  k_tensor.shape[1] = v_tensor.shape[1] = kSeqlenK - 1;
  EXPECT_EQ(onepass_plan_run(plan, &args, workspace.get(), bytes), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(),
              AllOf(StartsWith("onepass_plan_run: "), HasSubstr("the plan is for")));
  expect_nothing_written();
}

TEST_F(CApi, one_plan_serves_several_threads_at_once) {
  create_plan();
  constexpr std::size_t kThreads = 3;
  std::array<std::vector<float>, kThreads> outs;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      outs[t].assign(q.size(), kNan);
      onepass_forward_args mine = args;
      onepass_tensor my_out = tensor(outs[t].data(), ONEPASS_DTYPE_F32, {1, kSeqlenQ, kHeadsQ, kHeadDim});
      mine.out = &my_out;
      std::vector<float> my_lse(lse.size());
      onepass_tensor my_lse_tensor = tensor(my_lse.data(), ONEPASS_DTYPE_F32, {1, kHeadsQ, kSeqlenQ});
      mine.softmax_lse = &my_lse_tensor;
      const AlignedMemory workspace = aligned_memory(bytes);
      const char* text = nullptr;
      EXPECT_EQ(onepass_plan_explain(plan, &text), ONEPASS_OK);
      EXPECT_EQ(onepass_plan_run(plan, &mine, workspace.get(), bytes), ONEPASS_OK)
          << onepass_last_error_message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& values : outs) {
    EXPECT_FLOAT_EQ(values.front(), 2.5f);
    EXPECT_FLOAT_EQ(values.back(), 3.0f);
  }
}

TEST_F(CApi, workspace_bytes_needs_no_data_and_agrees_with_the_plan) {
  create_plan();
  for (onepass_tensor* t : {&q_tensor, &k_tensor, &v_tensor, &out_tensor, &lse_tensor}) t->data = nullptr;
  std::size_t alone = 0;
  ASSERT_EQ(onepass_workspace_bytes(&args, &options, nullptr, &alone), ONEPASS_OK)
      << onepass_last_error_message();
  EXPECT_EQ(alone, bytes);
  EXPECT_EQ(onepass_forward(&args, &options), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("null data pointer"));
}

TEST_F(CApi, plans_are_explained_and_unknown_devices_are_refused_with_the_known_ones) {
  create_plan();
  const char *text = nullptr, *again = nullptr;
  ASSERT_EQ(onepass_plan_explain(plan, &text), ONEPASS_OK);
  ASSERT_EQ(onepass_plan_explain(plan, &again), ONEPASS_OK);
  EXPECT_EQ(text, again);
  EXPECT_THAT(text, AllOf(HasSubstr("causal bottom-right"), HasSubstr("workspace")));

  onepass_plan* other = plan;
  EXPECT_EQ(onepass_plan_create(&args, &options, "h900", &other), ONEPASS_INVALID_ARGUMENT);
  EXPECT_EQ(other, nullptr);
  EXPECT_THAT(onepass_last_error_message(),
              AllOf(StartsWith("onepass_plan_create: device is \"h900\""), HasSubstr("a100, h100, h200")));
  for (const std::string& name : onepass::known_devices()) {
    const onepass_status status = onepass_workspace_bytes(&args, &options, name.c_str(), &bytes);
    EXPECT_TRUE(status == ONEPASS_OK || status == ONEPASS_NOT_SUPPORTED) << onepass_last_error_message();
  }
}

TEST_F(CApi, tensor_make_takes_strides_and_refuses_bad_ranks_and_dtypes) {
  const std::int64_t shape[] = {2, 3, 4, 5, 6, 7}, strides[] = {0, -1};
  onepass_tensor t = ONEPASS_TENSOR_INIT;
  ASSERT_EQ(onepass_tensor_make(q.data(), ONEPASS_DTYPE_BF16, 2, shape, strides, &t), ONEPASS_OK);
  EXPECT_EQ(t.data, q.data());
  EXPECT_EQ(t.dtype, ONEPASS_DTYPE_BF16);
  EXPECT_EQ(t.rank, 2);
  EXPECT_THAT(t.shape, ElementsAre(2, 3, 0, 0, 0));
  EXPECT_THAT(t.strides, ElementsAre(0, -1, 0, 0, 0));
  EXPECT_EQ(t.struct_size, sizeof(t));

  const onepass_tensor before = t;
  for (const int rank : {-1, 0, 6}) {
    EXPECT_EQ(onepass_tensor_make(q.data(), ONEPASS_DTYPE_F32, rank, shape, nullptr, &t),
              ONEPASS_INVALID_ARGUMENT);
    EXPECT_THAT(onepass_last_error_message(), AllOf(StartsWith("onepass_tensor_make: "),
                                                    HasSubstr(std::to_string(rank)), HasSubstr("1 to 5")));
  }
  EXPECT_EQ(onepass_tensor_make(q.data(), 7, 2, shape, nullptr, &t), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("dtype is 7"));
  EXPECT_EQ(std::memcmp(&t, &before, sizeof(t)), 0);
}

TEST(c_api, merge_joins_two_partial_results_and_takes_an_absent_lse) {
  const std::vector<float> out_a = {3.0f}, out_b = {9.0f}, lse_a = {std::log(4.0f)}, lse_b = {0.0f};
  std::vector<float> out = {kNan}, lse = {kNan};
  const onepass_tensor a = tensor(out_a.data(), ONEPASS_DTYPE_F32, {1, 1, 1});
  const onepass_tensor b = tensor(out_b.data(), ONEPASS_DTYPE_F32, {1, 1, 1});
  const onepass_tensor la = tensor(lse_a.data(), ONEPASS_DTYPE_F32, {1, 1});
  const onepass_tensor lb = tensor(lse_b.data(), ONEPASS_DTYPE_F32, {1, 1});
  const onepass_tensor o = tensor(out.data(), ONEPASS_DTYPE_F32, {1, 1, 1});
  const onepass_tensor l = tensor(lse.data(), ONEPASS_DTYPE_F32, {1, 1});
  onepass_merge_args args = ONEPASS_MERGE_ARGS_INIT;
  args.out_a = &a;
  args.lse_a = &la;
  args.out_b = &b;
  args.lse_b = &lb;
  args.out = &o;
  args.lse = &l;
  ASSERT_EQ(onepass_merge(&args, 1), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_FLOAT_EQ(out[0], (4 * 3.0f + 9.0f) / 5);
  EXPECT_FLOAT_EQ(lse[0], std::log(5.0f));
  out[0] = kNan;
  args.struct_size = offsetof(onepass_merge_args, lse);
  ASSERT_EQ(onepass_merge(&args, 0), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_FLOAT_EQ(out[0], 4.2f);
  args.lse_b = nullptr;
  EXPECT_EQ(onepass_merge(&args, 1), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), StartsWith("onepass_merge: lse_b is missing"));
}

TEST(c_api, a_cascade_is_one_call_or_a_plan_with_its_workspace) {
  // q = 0: the mean of the three values of the prefix and the sequence's own two.
  const std::vector<float> q(8, 0), k_own(16, 1), k_prefix(24, 1);
  std::vector<float> v_own(16), v_prefix(24), out(8, kNan);
  for (std::size_t i = 0; i < 24; ++i) v_prefix[i] = static_cast<float>(i / 8 + 1);
  for (std::size_t i = 0; i < 16; ++i) v_own[i] = static_cast<float>(i / 8 + 4);
  const onepass_tensor tq = tensor(q.data(), ONEPASS_DTYPE_F32, {1, 1, 1, 8});
  const onepass_tensor tk = tensor(k_own.data(), ONEPASS_DTYPE_F32, {1, 2, 1, 8});
  const onepass_tensor tv = tensor(v_own.data(), ONEPASS_DTYPE_F32, {1, 2, 1, 8});
  const onepass_tensor to = tensor(out.data(), ONEPASS_DTYPE_F32, {1, 1, 1, 8});
  const onepass_tensor pk = tensor(k_prefix.data(), ONEPASS_DTYPE_F32, {3, 1, 8});
  const onepass_tensor pv = tensor(v_prefix.data(), ONEPASS_DTYPE_F32, {3, 1, 8});
  onepass_forward_args own = ONEPASS_FORWARD_ARGS_INIT;
  own.q = &tq;
  own.k = &tk;
  own.v = &tv;
  own.out = &to;
  onepass_cascade_args args = ONEPASS_CASCADE_ARGS_INIT;
  args.own = &own;
  args.k_prefix = &pk;
  args.v_prefix = &pv;
  ASSERT_EQ(onepass_cascade(&args, nullptr), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_THAT(out, Each(FloatNear(3, 1e-6f)));

  std::fill(out.begin(), out.end(), kNan);
  onepass_cascade_plan* plan = nullptr;
  std::size_t bytes = 0;
  ASSERT_EQ(onepass_cascade_plan_create(&args, nullptr, nullptr, &plan), ONEPASS_OK)
      << onepass_last_error_message();
  ASSERT_EQ(onepass_cascade_plan_workspace_bytes(plan, &bytes), ONEPASS_OK);
  ASSERT_GT(bytes, 0u);
  std::vector<char> memory(bytes + 64);
  char* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  EXPECT_EQ(onepass_cascade_plan_run(plan, &args, aligned, bytes - 1), ONEPASS_INVALID_ARGUMENT);
  EXPECT_TRUE(std::isnan(out[0]));
  ASSERT_EQ(onepass_cascade_plan_run(plan, &args, aligned, bytes), ONEPASS_OK)
      << onepass_last_error_message();
  EXPECT_THAT(out, Each(FloatNear(3, 1e-6f)));
  onepass_cascade_plan_destroy(plan);
  args.own = nullptr;
  EXPECT_EQ(onepass_cascade(&args, nullptr), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), StartsWith("onepass_cascade: args.own is NULL"));
}

TEST(c_api, append_kv_writes_into_pages_and_turns_keys) {
  const std::vector<float> k_new = {1, 2}, v_new = {7}, cos = {1, 1, 0}, sin = {0, 0, 1};
  std::vector<float> k_cache(8, kNan), v_cache(4, kNan);
  const std::vector<std::int32_t> lengths = {2}, table = {0, 1};
  std::vector<std::int32_t> lengths_then = {-1};
  const onepass_tensor k = tensor(k_new.data(), ONEPASS_DTYPE_F32, {1, 1, 1, 2});
  const onepass_tensor v = tensor(v_new.data(), ONEPASS_DTYPE_F32, {1, 1, 1, 1});
  const onepass_tensor kc = tensor(k_cache.data(), ONEPASS_DTYPE_F32, {2, 2, 1, 2});
  const onepass_tensor vc = tensor(v_cache.data(), ONEPASS_DTYPE_F32, {2, 2, 1, 1});
  const onepass_tensor used = tensor(lengths.data(), ONEPASS_DTYPE_I32, {1});
  const onepass_tensor used_then = tensor(lengths_then.data(), ONEPASS_DTYPE_I32, {1});
  const onepass_tensor pages = tensor(table.data(), ONEPASS_DTYPE_I32, {1, 2});
  const onepass_tensor c = tensor(cos.data(), ONEPASS_DTYPE_F32, {3, 1});
  const onepass_tensor s = tensor(sin.data(), ONEPASS_DTYPE_F32, {3, 1});
  onepass_append_args args = ONEPASS_APPEND_ARGS_INIT;
  args.k_new = &k;
  args.v_new = &v;
  args.k_cache = &kc;
  args.v_cache = &vc;
  args.cache_seqlens = &used;
  args.block_table = &pages;
  args.rotary_cos = &c;
  args.rotary_sin = &s;
  args.seqlens_out = &used_then;
  args.rotary_interleaved = 1;
  ASSERT_EQ(onepass_append_kv(&args, 1), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_EQ(k_cache[4], -2);
  EXPECT_EQ(k_cache[5], 1);
  EXPECT_EQ(v_cache[2], 7);
  EXPECT_TRUE(std::isnan(k_cache[3]) && std::isnan(k_cache[6]) && std::isnan(v_cache[1]) &&
              std::isnan(v_cache[3]));
  EXPECT_EQ(lengths_then[0], 3);
  args.rotary_interleaved = 2;
  EXPECT_EQ(onepass_append_kv(&args, 1), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), StartsWith("onepass_append_kv: rotary_interleaved is 2"));
}

TEST(c_api, append_kv_divides_rows_for_a_cache_of_8_bits) {
  const std::vector<float> k_new = {1, -3}, v_new = {7, 1000}, k_factor = {0.5f}, v_factor = {2, 1};
  std::vector<std::int8_t> k_cache(2, 99), v_cache(2, 99);
  const onepass_tensor k = tensor(k_new.data(), ONEPASS_DTYPE_F32, {1, 1, 2, 1});
  const onepass_tensor v = tensor(v_new.data(), ONEPASS_DTYPE_F32, {1, 1, 2, 1});
  const onepass_tensor kc = tensor(k_cache.data(), ONEPASS_DTYPE_I8, {1, 1, 2, 1});
  const onepass_tensor vc = tensor(v_cache.data(), ONEPASS_DTYPE_I8, {1, 1, 2, 1});
  const onepass_tensor kf = tensor(k_factor.data(), ONEPASS_DTYPE_F32, {1});
  const onepass_tensor vf = tensor(v_factor.data(), ONEPASS_DTYPE_F32, {2});
  onepass_append_args args = ONEPASS_APPEND_ARGS_INIT;
  args.k_new = &k;
  args.v_new = &v;
  args.k_cache = &kc;
  args.v_cache = &vc;
  args.k_descale = &kf;
  args.v_descale = &vf;
  ASSERT_EQ(onepass_append_kv(&args, 1), ONEPASS_OK) << onepass_last_error_message();
  EXPECT_EQ(k_cache, (std::vector<std::int8_t>{2, -6}));
  EXPECT_EQ(v_cache, (std::vector<std::int8_t>{4, 127})) << "3.5 rounds to the even 4";
  args.k_descale = &vc;
  EXPECT_EQ(onepass_append_kv(&args, 1), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), StartsWith("onepass_append_kv: k_descale has dtype i8"));
}

TEST(c_api, the_loaded_version_is_that_of_the_header) {
  EXPECT_STREQ(onepass_version(), ONEPASS_VERSION_STRING);
}

TEST(c_api, errors_of_one_thread_are_not_seen_by_another) {
  EXPECT_EQ(onepass_forward(nullptr, nullptr), ONEPASS_INVALID_ARGUMENT);
  std::string seen;
  std::thread([&] { seen = onepass_last_error_message(); }).join();
  EXPECT_EQ(seen, "");
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("args is NULL"));
}

}  // namespace
