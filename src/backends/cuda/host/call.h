// What every attention call on a GPU does before and around its kernels: the device, its errors, the checks
// of addresses, the launches.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "backends/cuda/host/driver.h"
#include "backends/cuda/host/launch.h"
#include "onepass/attention.h"
#include "plan/planned_kernel.h"

namespace onepass::cuda {

/// One int per device in host memory that kernels can write: read without waiting for the device. The
/// device's context is current.
int* error_flag(const Driver& driver, int device_idx);

/// What a kernel reported since the last call with this device (a length or page that led out of bounds in
/// device memory): throws InvalidArgument once, or does nothing. No synchronisation.
void report_kernel_errors(const char* call, int device_idx);

/// The GPU of a call: its context is current for as long as this lives.
class Call {
 public:
  /// `q` names the device. @throws EnvironmentError without a driver, InvalidArgument without such a device,
  ///   or when a kernel has reported an error since the last call.
  explicit Call(const TensorView& q);

  const Driver& driver() const { return driver_; }
  int* error_flag() const { return error_flag_; }

  /// @throws InvalidArgument unless the view's elements, if any, are memory of this GPU, aligned to that many
  /// bytes.
  void check(const char* name, const TensorView& view, int alignment) const;
  /// All tensors of a forward call: rows of q, k and v are read in pieces of load_bytes, those of out
  /// written, or read, in pieces of out_bytes.
  void check_forward(const ForwardArguments& args, int load_bytes, int out_bytes) const;
  void check_workspace(std::span<std::byte> workspace) const;

  static constexpr std::size_t kMostSteps = 8;
  struct Launch {
    const LoadedKernel* kernel = nullptr;
    std::int64_t grid = 0;
    KernelParameters parameters{};
  };
  using Launches = std::array<Launch, kMostSteps>;  // those behind the last step have no kernel

  /// Loads the kernels of all steps; parameters(family) are what one takes.
  template <class Parameters>
  Launches prepare(const Plan& plan, Parameters parameters) const {
    Launches launches{};
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const PlannedKernel& kernel = *plan.steps[i].gpu_kernel;
      launches.at(i) = {&loaded(kernel), plan.steps[i].num_work_items, parameters(kernel.spec.family)};
    }
    return launches;
  }
  /// Queues them in order.
  void queue(const Launches& launches, Stream stream) const {
    for (const Launch& launch : launches) {
      if (launch.kernel != nullptr) {
        launch_kernel(driver_, *launch.kernel, launch.grid, launch.parameters, stream);
      }
    }
  }
  /// Both, one after the other.
  template <class Parameters>
  void launch(const Plan& plan, Stream stream, Parameters parameters) const {
    queue(prepare(plan, parameters), stream);
  }

 private:
  /// The step's kernel on this device: the store is asked by the first run of a plan only.
  const LoadedKernel& loaded(const PlannedKernel& kernel) const;

  const Driver& driver_;
  int device_idx_;
  ContextScope context_;
  int* error_flag_;
};

/// A plan with a kernel that the call does not launch. @throws InternalError.
[[noreturn]] void throw_unknown_kernel(const char* call);

}  // namespace onepass::cuda
