// host_cost: what the CPU spends on one forward call with a kept plan on GPU 0, and on its parts, in
// microseconds. Each number is the median of many rounds, a round the mean of so few calls that the GPU's
// queue takes them without making the CPU wait. The case is bf16, (B, H, S, D) = (1, 16, 512, 64), dense.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/cuda/host/driver.h"
#include "backends/cuda/host/forward_params.h"
#include "backends/cuda/host/launch.h"
#include "onepass/attention.h"
#include "onepass/onepass.h"
#include "problem/validate.h"
#include "support/shared_object.h"
#include "verify/device_copies.h"

namespace onepass {
namespace {

using cuda::Driver;

constexpr int kRounds = 301, kCallsPerRound = 50;
constexpr std::int64_t kShape[] = {1, 512, 16, 64};

/// PTX takes any GPU since sm_80 and any driver since CUDA 11. The second kernel takes ForwardParams.
constexpr const char* kEmptyKernels = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry empty() { ret; }
.visible .entry empty_with_params(.param .align 8 .b8 params[496]) { ret; }
)";
static_assert(sizeof(cuda::ForwardParams) == 496);

/// What only this program asks the driver for: the alternatives to what the library does.
struct Alternatives {
  cuda::CUresult (*cuPointerGetAttribute)(void*, cuda::PointerAttribute, cuda::CUdeviceptr) = nullptr;

  Alternatives() {
    const SharedObject library("libcuda.so.1");
    if (!library.load(cuPointerGetAttribute, "cuPointerGetAttribute")) {
      throw std::runtime_error("the driver has no cuPointerGetAttribute");
    }
  }
};

void wait(const Driver& driver) {
  const cuda::ContextScope context(driver, 0);
  driver.check(driver.api().cuStreamSynchronize(nullptr), "synchronize");
}

double microseconds(const Driver& driver, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < kCallsPerRound; ++i) call();
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    rounds.push_back(time.count() / kCallsPerRound);
    wait(driver);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

void require(onepass_status status) {
  if (status != ONEPASS_OK) throw std::runtime_error(onepass_last_error_message());
}

LoadedKernel kernel_named(const Driver& driver, cuda::CUmodule module, const char* name) {
  LoadedKernel kernel{0, nullptr, 128, 0};
  driver.check(driver.api().cuModuleGetFunction(&kernel.function, module, name), "cuModuleGetFunction");
  return kernel;
}

/// A tensor of the case in GPU memory, as both interfaces see it.
struct Tensor {
  verify::GuardedDeviceBuffer memory{static_cast<std::size_t>(512 * 16 * 64 * 2), 0};
  TensorView view = make_view(memory.data(), DType::BF16, kShape);
  onepass_tensor c = ONEPASS_TENSOR_INIT;

  Tensor() {
    view.device = DeviceKind::Cuda;
    require(onepass_tensor_make(memory.data(), ONEPASS_DTYPE_BF16, 4, kShape, nullptr, &c));
    c.device = ONEPASS_DEVICE_CUDA;
  }
};

/// A plan of the C interface with its workspace.
class KeptPlan {
 public:
  KeptPlan(const onepass_forward_args& args, int num_splits) {
    onepass_forward_options options = ONEPASS_FORWARD_OPTIONS_INIT;
    options.num_splits = num_splits;
    onepass_plan* plan = nullptr;
    require(onepass_plan_create(&args, &options, nullptr, &plan));
    plan_.reset(plan);
    std::size_t bytes = 0;
    require(onepass_plan_workspace_bytes(plan, &bytes));
    workspace_.emplace(bytes, 0);
  }
  void run(const onepass_forward_args& args) const {
    require(onepass_plan_run(plan_.get(), &args, workspace_->data(), workspace_->size()));
  }

 private:
  struct Destroy {
    void operator()(onepass_plan* plan) const { onepass_plan_destroy(plan); }
  };
  std::unique_ptr<onepass_plan, Destroy> plan_;
  std::optional<verify::GuardedDeviceBuffer> workspace_;
};

void measure() {
  const Driver& driver = Driver::required("host_cost");
  const cuda::DriverTable& api = driver.api();
  const Alternatives alternatives;
  const Tensor q, k, v, out;
  const std::array<const Tensor*, 4> tensors = {&q, &k, &v, &out};

  onepass_forward_args c_args = ONEPASS_FORWARD_ARGS_INIT;
  c_args.q = &q.c;
  c_args.k = &k.c;
  c_args.v = &v.c;
  c_args.out = &out.c;
  ForwardArguments args;
  args.q = q.view;
  args.k = k.view;
  args.v = v.view;
  args.out = out.view;

  const auto print = [](const std::string& what, double us) { fmt::print("{:9.3f} us  {}\n", us, what); };
  cuda::CUmodule module = nullptr;
  double launch = 0;
  LoadedKernel empty, empty_with_params;
  {
    const cuda::ContextScope context(driver, 0);
    driver.check(api.cuModuleLoadData(&module, kEmptyKernels), "cuModuleLoadData");
    empty = kernel_named(driver, module, "empty");
    empty_with_params = kernel_named(driver, module, "empty_with_params");
    launch = microseconds(driver, [&] { launch_kernel(driver, empty, 1, {}, {}); });
    print("launch of an empty kernel", launch);
  }
  for (const int num_splits : {0, 1}) {
    const KeptPlan kept(c_args, num_splits);
    const std::size_t num_kernels = plan(args, {.num_splits = num_splits}).steps.size();
    fmt::print("\n{}: {} kernel(s)\n", num_splits == 0 ? "splits as planned" : "not split", num_kernels);
    const auto run = [&] { kept.run(c_args); };
    print("onepass_plan_run, no context current", microseconds(driver, run));
    const cuda::ContextScope context(driver, 0);
    const double whole = microseconds(driver, run);
    print("onepass_plan_run, the device's context current", whole);
    print("  beyond one empty launch", whole - launch);
    print("  beyond as many empty launches as it has kernels",
          whole - launch * static_cast<double>(num_kernels));
  }

  const cuda::ContextScope context(driver, 0);
  const Plan made = plan(args, {.num_splits = 1});
  fmt::print("\nparts\n");
  cuda::ForwardParams params{};
  print("launch of an empty kernel with ForwardParams",
        microseconds(driver, [&] { launch_kernel(driver, empty_with_params, 1, {&params}, {}); }));
  print("validate_run", microseconds(driver, [&] { validate_run("host_cost", *made.problem, args); }));
  print("forward_params", microseconds(driver, [&] { params = cuda::forward_params(made, args, {}); }));
  print("check_pointer, 4 tensors", microseconds(driver, [&] {
          for (const Tensor* t : tensors) {
            cuda::check_pointer(driver, "host_cost", "tensor", t->view.data, 0, 16);
          }
        }));
  print("cuPointerGetAttribute, memory type of 4 tensors", microseconds(driver, [&] {
          for (const Tensor* t : tensors) {
            unsigned type = 0;
            alternatives.cuPointerGetAttribute(&type, cuda::kPointerMemoryType,
                                               reinterpret_cast<std::uintptr_t>(t->view.data));
          }
        }));
  print("cuPointerGetAttribute, device of 4 tensors", microseconds(driver, [&] {
          for (const Tensor* t : tensors) {
            int device = 0;
            alternatives.cuPointerGetAttribute(&device, cuda::kPointerDeviceOrdinal,
                                               reinterpret_cast<std::uintptr_t>(t->view.data));
          }
        }));
  print("scope of the current context",
        microseconds(driver, [&] { const cuda::ContextScope scope(driver, 0); }));
  print("cuCtxPushCurrent and cuCtxPopCurrent", microseconds(driver, [&] {
          cuda::CUcontext previous = nullptr;
          driver.check(api.cuCtxPushCurrent_v2(driver.primary_context(0)), "cuCtxPushCurrent");
          driver.check(api.cuCtxPopCurrent_v2(&previous), "cuCtxPopCurrent");
        }));
  driver.check(api.cuModuleUnload(module), "cuModuleUnload");
}

}  // namespace
}  // namespace onepass

int main() {
  try {
    onepass::measure();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "host_cost: %s\n", error.what());
    return 1;
  }
  return 0;
}
