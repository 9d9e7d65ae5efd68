#include "tests/emulator/plan_on.h"

#include "plan/make_plan.h"
#include "problem/validate.h"
#include "tests/emulator/cases.h"

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

DeviceInfo invariant_device(const std::string& name) {
  return name == "decode" ? emulated_device("h200", kDecodeInstructions)
                          : emulated_device(name.c_str(), kForwardInstructions);
}

namespace {

template <class Arguments>
Plan plan_of(const DeviceInfo& device, const Arguments& args, const ForwardOptions& options) {
  AttentionProblem problem = validate_problem("emulator", args, options);
  validate_run("emulator", problem, args);
  problem.memory = DeviceKind::Cuda;
  return make_plan("emulator", problem, {Backend::Cuda, 0, options.num_splits}, device);
}

}  // namespace

Plan plan_on(const DeviceInfo& device, const ForwardArguments& args, const ForwardOptions& options) {
  return plan_of(device, args, options);
}
Plan plan_on(const DeviceInfo& device, const verify::CaseTensors& tensors) {
  return plan_of(device, tensors.args, tensors.options);
}
Plan plan_on(const DeviceInfo& device, const verify::GradientTensors& tensors) {
  return plan_of(device, tensors.args, tensors.options);
}

}  // namespace onepass::emulator
