// Writing new keys and values into a cache on an NVIDIA GPU.
#pragma once

#include "backends/cuda/kernels/params.h"
#include "problem/append_problem.h"
#include "store/kernel_spec.h"

namespace onepass::cuda {

/// Which kernel a call takes, and what it is launched with.
struct AppendLaunch {
  KernelSpec spec;
  AppendKvParams params{};
  std::int64_t grid = 0;  // 0: nothing to do
};

/// `error_flag` is raised where `args` has no overflow tensor. Pointers are copied, never followed.
/// @throws NotSupported for what the kernel does not take.
AppendLaunch append_launch(const char* call, const AppendArguments& args, const AppendProblem& problem,
                           const AppendOptions& options, int compute_capability, int* error_flag);

/// Arguments are checked already, but for their addresses. Returns when the kernel is queued on the stream.
/// @throws InvalidArgument for an address that is not memory of the call's device, NotSupported for what the
///   kernel does not take, EnvironmentError when the driver fails; nothing is launched then.
void append_kv(const AppendArguments& args, const AppendProblem& problem, const AppendOptions& options,
               Stream stream);

}  // namespace onepass::cuda
