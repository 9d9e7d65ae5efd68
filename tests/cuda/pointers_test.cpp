// Addresses, strides, workspaces and devices that a GPU call must refuse before it launches, or must take.
#include "tests/cuda/on_gpu.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;
using gpu_pointers = OnGpu;

constexpr Sizes kSizes = {.batch = 1,
                          .seqlen_q = 70,
                          .seqlen_k = 130,
                          .num_heads_q = 2,
                          .num_heads_k = 1,
                          .head_dim = 64,
                          .head_dim_v = 64};

constexpr std::pair<const char*, TensorView ForwardArguments::*> kTensors[] = {
    {"q", &ForwardArguments::q},
    {"k", &ForwardArguments::k},
    {"v", &ForwardArguments::v},
    {"out", &ForwardArguments::out},
    {"softmax_lse", &ForwardArguments::softmax_lse}};

TEST_F(gpu_pointers, a_host_address_in_a_view_of_a_gpu_is_named_and_nothing_runs) {
  Call host = noise_call(kSizes);
  const verify::GpuCall gpu("run", host.args, host.options);
  for (const auto& [name, view] : kTensors) {
    ForwardArguments bad = gpu.args();
    (bad.*view).data = (host.args.*view).data;
    EXPECT_THAT(refusal_of([&] { run(gpu.plan(), bad, gpu.workspace()); }),
                HasSubstr(std::string(name) + " is said to be on GPU 0, but its address is host memory"));
  }
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  EXPECT_TRUE(all_poison(host.args.out));
}

TEST_F(gpu_pointers, an_address_off_the_pieces_that_rows_are_read_in_is_named_and_nothing_runs) {
  Call host = noise_call(kSizes);
  const verify::GpuCall gpu("run", host.args, host.options);
  for (const auto& [name, view] : kTensors) {
    if (view == &ForwardArguments::softmax_lse) continue;  // f32: aligned to its elements is enough
    ForwardArguments bad = gpu.args();
    (bad.*view).data = static_cast<char*>((bad.*view).data) + 2;
    const std::string message = refusal_of([&] { run(gpu.plan(), bad, gpu.workspace()); });
    EXPECT_THAT(message, HasSubstr(std::string(name) + " starts at address"));
    EXPECT_THAT(message, HasSubstr("a multiple of 16 bytes"));
  }
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  EXPECT_TRUE(all_poison(host.args.out));
}

TEST_F(gpu_pointers, strides_of_any_number_of_elements_are_read_in_narrower_pieces) {
  for (const auto& [extra, piece] : {std::pair{1, "_l2s"}, {2, "_l4s"}, {4, "_l8s"}, {8, "_l16s"}}) {
    Call call;
    const std::int64_t row = 2 * 64 + extra;
    for (auto [view, length, seed] :
         {std::tuple{&call.args.q, 70, 1}, {&call.args.k, 130, 2}, {&call.args.v, 130, 3}}) {
      HostTensor t(make_view(nullptr, DType::BF16, std::vector<std::int64_t>{1, length, 2, 64},
                             std::vector<std::int64_t>{length * row, row, 64, 1}),
                   length * row);
      t.fill(noise(seed));
      *view = call.keep(std::move(t));
    }
    call.run(kGpuTarget);
    const verify::GpuCall gpu("run", call.args, call.options);
    EXPECT_THAT(gpu.plan().steps.back().kernel, HasSubstr(piece));
  }
}

TEST_F(gpu_pointers, r44_a_workspace_too_small_in_host_memory_or_misaligned_is_refused) {
  Call host = noise_call(kSizes);
  host.options.num_splits = 2;
  const verify::GpuCall gpu("run", host.args, host.options);
  const std::span<std::byte> workspace = gpu.workspace();
  ASSERT_GT(workspace.size(), 0u);
  EXPECT_THAT(refusal_of([&] { run(gpu.plan(), gpu.args(), workspace.first(workspace.size() - 1)); }),
              HasSubstr("workspace has " + std::to_string(workspace.size() - 1) + " bytes"));
  verify::GuardedBuffer in_host_memory(workspace.size());
  EXPECT_THAT(
      refusal_of([&] {
        run(gpu.plan(), gpu.args(), {static_cast<std::byte*>(in_host_memory.data()), workspace.size()});
      }),
      HasSubstr("workspace is said to be on GPU 0, but its address is host memory"));
  EXPECT_THAT(refusal_of([&] {
                run(gpu.plan(), gpu.args(), {workspace.data() + 32, workspace.size()});
              }),
              HasSubstr("no multiple of 64"));
  EXPECT_EQ(gpu.copy_back(), std::nullopt);
  EXPECT_TRUE(all_poison(host.args.out));
}

TEST_F(gpu_pointers, a_gpu_that_is_not_there_is_named) {
  Call host = noise_call(kSizes);
  const verify::GpuCall gpu("run", host.args, host.options);
  const int past_the_last = cuda::Driver::instance()->num_devices();
  for (const int device_idx : {past_the_last, -1}) {
    ForwardArguments bad = gpu.args();
    for (TensorView* view : {&bad.q, &bad.k, &bad.v, &bad.out, &bad.softmax_lse})
      view->device_idx = device_idx;
    const std::string named = "q is on GPU " + std::to_string(device_idx);
    EXPECT_THAT(refusal_of([&] { plan(bad); }), HasSubstr(named));
    EXPECT_THAT(refusal_of([&] { run(gpu.plan(), bad, gpu.workspace()); }), HasSubstr(named));
    EXPECT_THAT(refusal_of([&] { forward(bad); }), HasSubstr(named));
  }
}

/// Bytes of element (row, head) of a tensor whose rows or heads lie `far` apart, in GPU memory.
class FarTensor {
 public:
  FarTensor(const TensorView& like, const std::array<std::int64_t, 4>& strides)
      : strides_(strides),
        memory_(static_cast<std::size_t>(strides[1] * 2 + strides[2] + 8) * 2, 0),
        view_(make_view(memory_.data(), like.dtype, std::span(like.shape).first(4), strides)) {
    view_.device = DeviceKind::Cuda;
  }
  const TensorView& view() const { return view_; }
  void upload(const TensorView& host) const {
    each_row(host, [](cuda::CUdeviceptr far, void* near) {
      return cuda::Driver::instance()->api().cuMemcpyHtoD_v2(far, near, 16);
    });
  }
  void download(const TensorView& host) const {
    each_row(host, [](cuda::CUdeviceptr far, void* near) {
      return cuda::Driver::instance()->api().cuMemcpyDtoH_v2(near, far, 16);
    });
  }

 private:
  template <class Copy>
  void each_row(const TensorView& host, Copy copy) const {
    const cuda::ContextScope context(*cuda::Driver::instance(), 0);
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t h = 0; h < 2; ++h) {
        auto* far = memory_.data() + 2 * (i * strides_[1] + h * strides_[2]);
        EXPECT_EQ(copy(reinterpret_cast<std::uintptr_t>(far),
                       static_cast<std::byte*>(host.data) + 2 * (i * host.strides[1] + h * host.strides[2])),
                  0);
      }
    }
  }

  std::array<std::int64_t, 4> strides_;
  verify::GuardedDeviceBuffer memory_;
  TensorView view_;
};

TEST_F(gpu_pointers, r27_offsets_past_32_bits_read_and_write_the_right_elements) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;  // elements; wraps to a negative 32-bit number
  if (cuda::Driver::instance()->device_memory_bytes(0) < std::size_t{40} << 30)
    GTEST_SKIP() << "needs 35 GB of GPU memory";
  Call near = noise_call(
      {.seqlen_q = 3, .seqlen_k = 3, .num_heads_q = 2, .num_heads_k = 2, .head_dim = 8, .head_dim_v = 8});
  near.options.causal = Causal::BottomRight;
  near.run(kGpuTarget);
  for (const std::array<std::int64_t, 4> strides :
       {std::array<std::int64_t, 4>{0, kFar, 8, 1}, {0, 8, kFar, 1}}) {  // far rows, far heads
    const FarTensor q(near.args.q, strides), k(near.args.k, strides), v(near.args.v, strides),
        out(near.args.out, strides);
    q.upload(near.args.q);
    k.upload(near.args.k);
    v.upload(near.args.v);
    ForwardArguments args;
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    args.out = out.view();
    forward(args, near.options);
    const HostTensor got(DType::BF16, {1, 3, 2, 8});
    out.download(got.view());
    EXPECT_EQ(bytes_of(got.view()), bytes_of(near.args.out)) << strides[1];
  }
}

}  // namespace
}  // namespace onepass
