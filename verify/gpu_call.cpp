#include "verify/gpu_call.h"

#include "backends/cuda/host/forward.h"
#include "plan/make_plan.h"
#include "problem/validate.h"
#include "verify/tensor_views.h"

namespace onepass::verify {
namespace {

template <class Arguments>
Plan plan_on_gpu(const char* call, const Arguments& host, const ForwardOptions& options, int device_idx) {
  const DeviceInfo device = cuda::device_info(device_idx, call);
  AttentionProblem problem = validate_problem(call, host, options);
  validate_run(call, problem, host);
  problem.memory = DeviceKind::Cuda;
  return make_plan(call, problem, {Backend::Cuda, options.num_threads, options.num_splits}, device);
}

}  // namespace

template <class Arguments>
BasicGpuCall<Arguments>::BasicGpuCall(const char* call, const Arguments& host, const ForwardOptions& options,
                                      int device_idx)
    : args_(host),
      plan_(plan_on_gpu(call, host, options, device_idx)),
      copies_(all_views(args_), device_idx),
      workspace_(plan_.workspace_bytes(), device_idx) {}

template <class Arguments>
std::optional<std::string> BasicGpuCall<Arguments>::copy_back() const {
  std::optional<std::string> damage = copies_.copy_back();
  if (!workspace_.guards_intact()) damage = "GPU memory beside the workspace was written";
  return damage;
}

template class BasicGpuCall<ForwardArguments>;
template class BasicGpuCall<BackwardArguments>;

}  // namespace onepass::verify
