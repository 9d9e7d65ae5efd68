#include "dispatch/implementations.h"

#include <fmt/format.h>

#include <array>

#include "dispatch/heuristics_decode.h"
#include "dispatch/heuristics_sm80.h"
#include "dispatch/heuristics_sm80_backward.h"
#include "dispatch/heuristics_sm90.h"
#include "dispatch/heuristics_sm90_backward.h"
#include "plan/cpu_plan.h"
#include "plan/cuda_plan.h"

namespace onepass {
namespace {

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

std::optional<std::string> decline_sm80(const AttentionProblem& problem, const DeviceInfo& device,
                                        const PlanRequest& request) {
  if (request.backend == Backend::Cpu || request.backend == Backend::Reference) return asked_for(request);
  return decline_sm80_forward(problem, device, request.num_splits);
}

std::optional<std::string> decline_sm90(const AttentionProblem& problem, const DeviceInfo& device,
                                        const PlanRequest& request) {
  if (request.backend == Backend::Cpu || request.backend == Backend::Reference) return asked_for(request);
  return decline_sm90_forward(problem, device, request.num_splits);
}

std::optional<std::string> decline_decode(const AttentionProblem& problem, const DeviceInfo& device,
                                          const PlanRequest& request) {
  if (request.backend == Backend::Cpu || request.backend == Backend::Reference) return asked_for(request);
  return decline_sm90_decode(problem, device);
}

std::optional<std::string> decline_sm90_gradients(const AttentionProblem& problem, const DeviceInfo& device,
                                                  const PlanRequest& request) {
  if (request.backend == Backend::Cpu || request.backend == Backend::Reference) return asked_for(request);
  return decline_sm90_backward(problem, device);
}

std::optional<std::string> decline_sm80_gradients(const AttentionProblem& problem, const DeviceInfo& device,
                                                  const PlanRequest& request) {
  if (request.backend == Backend::Cpu || request.backend == Backend::Reference) return asked_for(request);
  return decline_sm80_backward(problem, device);
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

constexpr std::array<Implementation, 5> kImplementations = {{
    {"sm90_forward", decline_sm90, lay_out_sm90_forward},
    {"sm90_decode", decline_decode, lay_out_sm90_decode},
    {"sm80_forward", decline_sm80, lay_out_sm80_forward},
    {"cpu_simd", decline_cpu_simd, lay_out_cpu_simd},
    {"cpu_reference", decline_cpu_reference, lay_out_cpu_reference},
}};

constexpr std::array<Implementation, 4> kBackward = {{
    {"sm90_backward", decline_sm90_gradients, lay_out_sm90_backward},
    {"sm80_backward", decline_sm80_gradients, lay_out_sm80_backward},
    {"cpu_simd", decline_cpu_simd, lay_out_cpu_simd_backward},
    {"cpu_reference", decline_cpu_reference, lay_out_cpu_reference_backward},
}};

}  // namespace

std::span<const Implementation> implementations() { return kImplementations; }
std::span<const Implementation> backward_implementations() { return kBackward; }
std::span<const Implementation> implementations_of(const AttentionProblem& problem) {
  return problem.gradient ? backward_implementations() : implementations();
}

}  // namespace onepass
