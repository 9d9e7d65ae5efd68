#include "tests/emulator/plan_on.h"

#include "plan/make_plan.h"
#include "problem/validate.h"

namespace onepass::emulator {

Plan plan_on(const char* device, const verify::CaseTensors& tensors) {
  AttentionProblem problem = validate_problem("emulator", tensors.args, tensors.options);
  validate_run("emulator", problem, tensors.args);
  problem.memory = DeviceKind::Cuda;
  DeviceInfo emulated = find_device(device).value();
  emulated.compute_capability = 80;  // the instructions that the emulator knows
  return make_plan("emulator", problem, {Backend::Cuda, 0, tensors.options.num_splits}, emulated);
}

}  // namespace onepass::emulator
