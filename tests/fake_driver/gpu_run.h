// Calls whose tensors are memory of fake GPUs.
#pragma once

#include <gmock/gmock.h>

#include <span>
#include <string>

#include "onepass/attention.h"
#include "tests/fake_driver/fake_driver.h"

namespace onepass::fake {

inline constexpr std::int64_t kBatch = 2, kSeqlen = 96, kHeads = 4, kHeadDim = 64;

inline TensorView tensor_on(int device_idx, DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view = make_view(nullptr, dtype, shape);
  view.data = device_memory(static_cast<std::size_t>(view.num_elements() * dtype_bytes(dtype)), device_idx);
  view.device = DeviceKind::Cuda;
  view.device_idx = device_idx;
  return view;
}

/// A call whose tensors are memory of a fake GPU.
inline ForwardArguments tensors_on(int device_idx, std::int64_t head_dim = kHeadDim) {
  ForwardArguments args;
  for (TensorView* view : {&args.q, &args.k, &args.v, &args.out}) {
    *view = tensor_on(device_idx, DType::BF16, {kBatch, kSeqlen, kHeads, head_dim});
  }
  args.softmax_lse = tensor_on(device_idx, DType::F32, {kBatch, kHeads, kSeqlen});
  return args;
}

/// One step of each family for attention; the fake GPUs are of compute capability 9.0.
inline ForwardArguments sm80_tensors() { return tensors_on(0, kHeadDim - 4); }  // rows of 120 bytes
inline Plan sm80_plan() { return plan(sm80_tensors()); }
inline Plan sm90_plan() { return plan(tensors_on(0)); }
/// One step of sm90_forward with a workspace.
inline Plan ticket_plan() { return plan(tensors_on(0), {.causal = Causal::BottomRight}); }
/// A step of sm80_forward and one that merges.
inline Plan plan_with_splits(int num_splits) { return plan(tensors_on(0), {.num_splits = num_splits}); }

/// One query of each sequence.
inline ForwardArguments decode_tensors_on(int device_idx) {
  ForwardArguments args = tensors_on(device_idx);
  for (TensorView* view : {&args.q, &args.out}) {
    *view = tensor_on(device_idx, DType::BF16, {kBatch, 1, kHeads, kHeadDim});
  }
  args.softmax_lse = tensor_on(device_idx, DType::F32, {kBatch, kHeads, 1});
  return args;
}
/// One step of sm90_decode with a workspace.
inline Plan decode_plan() { return plan(decode_tensors_on(0), {.num_splits = 2}); }

class GpuRun : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(current_device(), -1) << "a context was left current";
    missing_kernel().clear();
  }
  static std::span<std::byte> workspace_for(const Plan& plan, int device_idx = 0) {
    return {device_memory(plan.workspace_bytes(), device_idx), plan.workspace_bytes()};
  }
  static std::string refusal(const Plan& plan, const ForwardArguments& args,
                             std::span<std::byte> workspace = {}) {
    log().clear();
    try {
      run(plan, args, workspace);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

}  // namespace onepass::fake
