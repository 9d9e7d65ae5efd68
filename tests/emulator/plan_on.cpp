#include "tests/emulator/plan_on.h"

#include "plan/make_plan.h"
#include "problem/validate.h"

namespace onepass::emulator {

Plan plan_on(const char* device, const verify::CaseTensors& tensors) {
  AttentionProblem problem = validate_problem("emulator", tensors.args, tensors.options);
  validate_run("emulator", problem, tensors.args);
  problem.memory = DeviceKind::Cuda;
  return make_plan("emulator", problem, {Backend::Cuda, 0, tensors.options.num_splits},
                   find_device(device).value());
}

}  // namespace onepass::emulator
