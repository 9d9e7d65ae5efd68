#include "dispatch/implementations.h"

#include <fmt/format.h>

#include <array>

#include "plan/cpu_plan.h"

namespace onepass {
namespace {

const char* backend_name(Backend backend) {
  switch (backend) {
    case Backend::Auto: return "auto";
    case Backend::Cpu: return "cpu";
    case Backend::Reference: return "reference";
    case Backend::Cuda: return "cuda";
  }
  return "?";
}

std::string asked_for(const PlanRequest& request) {
  return fmt::format("backend '{}' was asked for", backend_name(request.backend));
}

std::optional<std::string> cpu_only(const AttentionProblem& problem, const DeviceInfo& device) {
  if (device.kind != DeviceInfo::Kind::Cpu) {
    return fmt::format("runs on a CPU, and the device is {}", device.name);
  }
  if (problem.memory != DeviceKind::Cpu) return "runs on a CPU, and the tensors are in GPU memory";
  return std::nullopt;
}

// Onepass 0.1 has the planner's view of GPUs, and kernels for CPUs only.
std::optional<std::string> decline_cuda(const AttentionProblem&, const DeviceInfo& device,
                                        const PlanRequest& request) {
  if (request.backend == Backend::Cpu || request.backend == Backend::Reference) return asked_for(request);
  if (device.kind == DeviceInfo::Kind::Cpu && request.backend == Backend::Auto) return "the device is a CPU";
  return "this version of onepass has no CUDA kernels; it has cpu_simd and cpu_reference";
}

std::optional<std::string> decline_cpu_simd(const AttentionProblem& problem, const DeviceInfo& device,
                                            const PlanRequest& request) {
  if (request.backend == Backend::Reference || request.backend == Backend::Cuda) return asked_for(request);
  return cpu_only(problem, device);
}

std::optional<std::string> decline_cpu_reference(const AttentionProblem& problem, const DeviceInfo& device,
                                                 const PlanRequest& request) {
  if (request.backend != Backend::Reference) {
    return fmt::format("runs only when backend 'reference' is asked for, and {}", asked_for(request));
  }
  return cpu_only(problem, device);
}

constexpr std::array<Implementation, 3> kImplementations = {{
    {"cuda", decline_cuda, nullptr},
    {"cpu_simd", decline_cpu_simd, lay_out_cpu_simd},
    {"cpu_reference", decline_cpu_reference, lay_out_cpu_reference},
}};

}  // namespace

std::span<const Implementation> implementations() { return kImplementations; }

}  // namespace onepass
