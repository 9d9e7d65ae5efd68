// Lengths, offsets and tables in GPU memory, which no host code reads: they may change between runs of one
// plan, and wrong ones stay in bounds and are reported by the next call.
#include "tests/cuda/on_gpu.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;
using gpu_values = OnGpu;

std::int32_t* indices(const TensorView& view) { return static_cast<std::int32_t*>(view.data); }

TEST_F(gpu_values, r41_lengths_that_change_between_runs_of_a_plan_are_those_of_each_run) {
  for (const int splits : {0, 1, 3}) {
    Call call = noise_call({.seqlen_q = 1,
                            .seqlen_k = 5000,
                            .num_heads_q = 4,
                            .num_heads_k = 2,
                            .head_dim = 64,
                            .head_dim_v = 64});
    call.args.seqused_k = call.keep(HostTensor{1});
    call.options.num_splits = splits;
    const verify::GpuCall gpu("run", call.args, call.options);
    for (const std::int32_t length : {1, 100, 5000, 0, 63}) {
      indices(call.args.seqused_k)[0] = length;
      call.memory[3].memory().fill(verify::kPoison);  // out
      gpu.upload();
      gpu.run();
      EXPECT_EQ(gpu.copy_back(), std::nullopt);
      const verify::CheckReport report = verify::check_result(call.args, call.options);
      EXPECT_TRUE(report.passed) << length << " keys, " << splits << " splits: " << report.text();
    }
  }
}

/// One query over pages: q = 0, k = v = 1.
Call paged_call(std::int64_t columns, std::int32_t length) {
  Call call;
  call.args.q = call.keep(HostTensor(DType::BF16, {1, 1, 1, 8}, constant(0)));
  call.args.k = call.keep(HostTensor(DType::BF16, {4, 16, 1, 8}, constant(1)));
  call.args.v = call.keep(HostTensor(DType::BF16, {4, 16, 1, 8}, constant(1)));
  call.args.block_table = call.keep(HostTensor(DType::I32, {1, columns}));
  for (std::int32_t n = 0; n < columns; ++n) indices(call.args.block_table)[n] = n;
  call.args.seqused_k = call.keep(HostTensor{length});
  call.allocate_outputs();
  return call;
}

/// Runs with `value` in place `at`, which must touch nothing beside the tensors; the next run says `says`,
/// and the one after it, with the old value back, works.
void expect_reported(const Call& call, const verify::GpuCall& gpu, std::int32_t& at, std::int32_t value,
                     const char* says) {
  const std::int32_t good = at;
  at = value;
  gpu.upload();
  gpu.run();
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  EXPECT_EQ(at, value) << "an input was written";
  EXPECT_THAT(refusal_of([&] { gpu.run(); }), HasSubstr(says)) << value;
  at = good;
  gpu.upload();
  gpu.run();
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  const verify::CheckReport report = verify::check_result(call.args, call.options);
  EXPECT_TRUE(report.passed) << report.text();
}

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max(),
                       kSmallest = std::numeric_limits<std::int32_t>::min();

TEST_F(gpu_values, r09_a_page_out_of_the_pool_stays_in_bounds_and_is_reported) {
  for (const int splits : {1, 2}) {
    Call call = paged_call(2, 17);
    call.options.num_splits = splits;
    const verify::GpuCall gpu("run", call.args, call.options);
    for (const std::int32_t page : {-1, 4, 1 << 30, kLargest, kSmallest}) {
      expect_reported(call, gpu, indices(call.args.block_table)[1], page,
                      "block_table entry outside its pool");
    }
  }
}

TEST_F(gpu_values, r33_a_length_past_the_table_stays_in_bounds_and_is_reported) {
  Call call = paged_call(4, 64);
  const verify::GpuCall gpu("run", call.args, call.options);
  for (const std::int32_t length : {65, 1 << 30, kLargest, -1, kSmallest}) {
    expect_reported(call, gpu, indices(call.args.seqused_k)[0], length, "a length past its tensors");
  }
}

TEST_F(gpu_values, lengths_past_a_dense_cache_stay_in_bounds_and_are_reported) {
  for (const std::int32_t seqlen_q : {5, 150}) {  // kernels of short and of long queries
    Call call =
        noise_call({.batch = 2, .seqlen_q = seqlen_q, .seqlen_k = 40, .head_dim = 40, .head_dim_v = 40});
    call.args.seqused_q = call.keep(HostTensor{seqlen_q, 3});
    call.args.seqused_k = call.keep(HostTensor{40, 7});
    const verify::GpuCall gpu("run", call.args, call.options);
    for (const TensorView& view : {call.args.seqused_q, call.args.seqused_k}) {
      for (const std::int32_t length : {indices(view)[0] + 1, kLargest, -3, kSmallest}) {
        expect_reported(call, gpu, indices(view)[1], length, "a length past its tensors");
      }
    }
  }
}

TEST_F(gpu_values, offsets_past_packed_buffers_stay_in_bounds_and_are_reported) {
  Call call;
  for (auto [view, seed] : {std::pair{&call.args.q, 1}, {&call.args.k, 2}, {&call.args.v, 3}}) {
    *view = call.keep(HostTensor(DType::BF16, {90, 2, 64}, noise(seed)));
  }
  call.args.cu_seqlens_q = call.keep(HostTensor{0, 70, 90});
  call.args.cu_seqlens_k = call.keep(HostTensor{0, 20, 90});
  call.options.causal = Causal::BottomRight;
  call.allocate_outputs();
  const verify::GpuCall gpu("run", call.args, call.options);
  for (const TensorView& view : {call.args.cu_seqlens_q, call.args.cu_seqlens_k}) {
    for (const std::int32_t offset : {91, 1 << 30, -1, kSmallest}) {
      expect_reported(call, gpu, indices(view)[2], offset, "a length past its tensors");
    }
    for (const std::int32_t offset : {1 << 30, -1}) {
      expect_reported(call, gpu, indices(view)[1], offset, "a length past its tensors");
    }
  }
}

TEST_F(gpu_values, r43_the_current_device_of_the_caller_stays_current) {
  const cuda::Driver& driver = *cuda::Driver::instance();
  const TestDriver test;
  Call call = noise_call({.seqlen_q = 9, .seqlen_k = 9});
  const int last = driver.num_devices() - 1;  // another device than the current one where there are two
  ASSERT_EQ(test.current_context(), nullptr);
  const verify::GpuCall gpu("run", call.args, call.options, last);
  gpu.run();
  EXPECT_EQ(test.current_context(), nullptr);
  {
    const cuda::ContextScope current(driver, 0);
    gpu.run();
    forward(gpu.args(), call.options);
    ForwardArguments bad = gpu.args();
    bad.q.data = call.args.q.data;
    refusal_of([&] { run(gpu.plan(), bad, gpu.workspace()); });
    EXPECT_EQ(test.current_context(), driver.primary_context(0));
  }
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  const verify::CheckReport report = verify::check_result(call.args, call.options);
  EXPECT_TRUE(report.passed) << report.text();
}

TEST_F(gpu_values, a_run_on_a_stream_of_the_callers_gives_the_bits_of_the_default_stream) {
  Call call = noise_call({.seqlen_q = 70, .seqlen_k = 300, .head_dim = 64, .head_dim_v = 64});
  const verify::GpuCall gpu("run", call.args, call.options);
  gpu.run();
  gpu.copy_back();
  const std::vector<unsigned char> want = bytes_of(call.args.out);
  const TestStream other;
  for (const bool planned : {true, false}) {
    call.memory[3].memory().fill(verify::kPoison);  // out
    gpu.upload();
    if (planned) {
      gpu.run(other.stream());
    } else {
      forward(gpu.args(), call.options, other.stream());
    }
    other.wait();
    EXPECT_EQ(gpu.copy_back(), std::nullopt);
    EXPECT_EQ(bytes_of(call.args.out), want);
  }
}

}  // namespace
}  // namespace onepass
