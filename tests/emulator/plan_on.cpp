#include "tests/emulator/plan_on.h"

#include "plan/make_plan.h"
#include "problem/validate.h"

namespace onepass::emulator {

DeviceInfo emulated_device(const char* name, int compute_capability) {
  DeviceInfo device = find_device(name).value();
  device.compute_capability = compute_capability;
  return device;
}

DeviceInfo small_device(int num_processors) {
  DeviceInfo device = find_device("h200").value();
  device.num_processors = num_processors;
  device.memory_bytes_per_second = 1;
  return device;
}

namespace {

template <class Tensors>
Plan plan_of(const DeviceInfo& device, const Tensors& tensors) {
  AttentionProblem problem = validate_problem("emulator", tensors.args, tensors.options);
  validate_run("emulator", problem, tensors.args);
  problem.memory = DeviceKind::Cuda;
  return make_plan("emulator", problem, {Backend::Cuda, 0, tensors.options.num_splits}, device);
}

}  // namespace

Plan plan_on(const DeviceInfo& device, const verify::CaseTensors& tensors) {
  return plan_of(device, tensors);
}
Plan plan_on(const DeviceInfo& device, const verify::GradientTensors& tensors) {
  return plan_of(device, tensors);
}

}  // namespace onepass::emulator
