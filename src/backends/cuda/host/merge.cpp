#include "backends/cuda/host/merge.h"

#include <fmt/format.h>

#include <limits>

#include "backends/cuda/host/launch.h"
#include "backends/cuda/kernels/params.h"
#include "plan/cuda_plan.h"
#include "support/message.h"

namespace onepass::cuda {
namespace {

static_assert(static_cast<int>(FloatType::F32) == static_cast<int>(DType::F32) &&
              static_cast<int>(FloatType::F16) == static_cast<int>(DType::F16) &&
              static_cast<int>(FloatType::Bf16) == static_cast<int>(DType::BF16));

/// out is [B, S, H, Dv] or packed [T, H, Dv]; lse is [B, H, S], packed [H, T], or absent.
StateParams state_params(const TensorView& out, const TensorView& lse) {
  const auto row = static_cast<std::size_t>(out.rank - 3);  // index of the row dimension
  StateParams state{};
  state.out = out.data;
  state.batch_stride = row == 1 ? out.strides[0] : 0;
  state.row_stride = out.strides[row];
  state.head_stride = out.strides[row + 1];
  state.dim_stride = out.strides[row + 2];
  state.type = static_cast<FloatType>(out.dtype);
  if (lse.present()) {
    state.lse = static_cast<float*>(lse.data);
    state.lse_batch_stride = row == 1 ? lse.strides[0] : 0;
    state.lse_head_stride = lse.strides[row];
    state.lse_row_stride = lse.strides[row + 1];
  }
  return state;
}

}  // namespace

void merge(const MergeArguments& args, Stream stream) {
  constexpr const char* kCall = "merge";
  const Driver& driver = Driver::required(kCall);
  const int device_idx = args.out.device_idx;
  driver.check_device(kCall, "out", device_idx);
  for (const auto& [name, view] : {std::pair{"out_a", &args.out_a},
                                   {"lse_a", &args.lse_a},
                                   {"out_b", &args.out_b},
                                   {"lse_b", &args.lse_b},
                                   {"out", &args.out},
                                   {"lse", &args.lse}}) {
    if (view->num_elements() == 0) continue;
    check_pointer(driver, kCall, name, view->data, device_idx, static_cast<int>(dtype_bytes(view->dtype)));
  }

  const auto row = static_cast<std::size_t>(args.out.rank - 3);
  MergeParams params{};
  params.a = state_params(args.out_a, args.lse_a);
  params.b = state_params(args.out_b, args.lse_b);
  params.out = state_params(args.out, args.lse);
  params.num_rows = args.out.shape[row];
  params.batch = row == 1 ? static_cast<int>(args.out.shape[0]) : 1;
  params.num_heads = static_cast<int>(args.out.shape[row + 1]);
  params.head_dim_v = static_cast<int>(args.out.shape[row + 2]);
  const std::int64_t rows = params.batch * params.num_rows * params.num_heads;
  if (rows == 0) return;
  const KernelSpec spec = merge_states_kernel(driver.compute_capability(device_idx));
  const std::int64_t grid = (rows + spec.num_warps - 1) / spec.num_warps;
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (grid > kMost || args.out.shape[row + 2] > kMost) {
    throw NotSupported(format_message(kCall, fmt::format("out has {} rows and heads", rows),
                                      fmt::format("up to {} on a GPU", kMost * spec.num_warps),
                                      "merge parts of the batch one after another"));
  }

  const ContextScope context(driver, device_idx);
  launch_kernel(driver, KernelStore::instance().get(spec, device_idx), grid, {&params}, stream);
}

}  // namespace onepass::cuda
