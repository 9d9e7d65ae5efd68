// The C interface on a GPU: tensors, plans and streams of that device.
#include "onepass/onepass.h"
#include "tests/cuda/on_gpu.h"

namespace onepass {
namespace {

using gpu_c_api = OnGpu;

onepass_tensor c_tensor(const TensorView& view) {
  onepass_tensor t = ONEPASS_TENSOR_INIT;
  EXPECT_EQ(onepass_tensor_make(view.data, static_cast<std::int32_t>(view.dtype), view.rank,
                                view.shape.data(), view.strides.data(), &t),
            ONEPASS_OK);
  t.device = ONEPASS_DEVICE_CUDA;
  return t;
}

TEST_F(gpu_c_api, forward_plans_and_merge_run_on_the_stream_of_their_arguments) {
  Call call = noise_call({.seqlen_q = 70, .seqlen_k = 300, .head_dim = 64, .head_dim_v = 64});
  const verify::GpuCall gpu("run", call.args, call.options);
  const ForwardArguments& device = gpu.args();
  const onepass_tensor q = c_tensor(device.q), k = c_tensor(device.k), v = c_tensor(device.v),
                       out = c_tensor(device.out), lse = c_tensor(device.softmax_lse);
  const TestStream other;
  onepass_forward_args args = ONEPASS_FORWARD_ARGS_INIT;
  args.q = &q;
  args.k = &k;
  args.v = &v;
  args.out = &out;
  args.softmax_lse = &lse;
  args.stream = other.stream().handle;

  const auto expect_right = [&] {
    other.wait();
    EXPECT_EQ(gpu.copy_back(), std::nullopt);
    const verify::CheckReport report = verify::check_result(call.args, call.options);
    EXPECT_TRUE(report.passed) << report.text();
    call.memory[3].memory().fill(verify::kPoison);  // out
    gpu.upload();
  };
  ASSERT_EQ(onepass_forward(&args, nullptr), ONEPASS_OK) << onepass_last_error_message();
  expect_right();

  onepass_plan* plan = nullptr;
  std::size_t bytes = 0;
  ASSERT_EQ(onepass_plan_create(&args, nullptr, nullptr, &plan), ONEPASS_OK) << onepass_last_error_message();
  ASSERT_EQ(onepass_plan_workspace_bytes(plan, &bytes), ONEPASS_OK);
  const verify::GuardedDeviceBuffer workspace(bytes, 0);
  ASSERT_EQ(onepass_plan_run(plan, &args, bytes > 0 ? workspace.data() : nullptr, bytes), ONEPASS_OK)
      << onepass_last_error_message();
  expect_right();
  onepass_plan_destroy(plan);

  // A result merged with itself: the same out, lse larger by ln 2.
  ASSERT_EQ(onepass_forward(&args, nullptr), ONEPASS_OK);
  other.wait();
  gpu.copy_back();
  const std::vector<unsigned char> before = bytes_of(call.args.out);
  const float lse_before = call.lse({0, 0, 69});
  onepass_merge_args merge = ONEPASS_MERGE_ARGS_INIT;
  merge.out_a = merge.out_b = merge.out = &out;
  merge.lse_a = merge.lse_b = merge.lse = &lse;
  merge.stream = args.stream;
  ASSERT_EQ(onepass_merge(&merge, 0), ONEPASS_OK) << onepass_last_error_message();
  other.wait();
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  EXPECT_EQ(bytes_of(call.args.out), before);
  EXPECT_NEAR(call.lse({0, 0, 69}), lse_before + std::log(2.0), 1e-6);
}

}  // namespace
}  // namespace onepass
