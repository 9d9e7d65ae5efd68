// A plan for a GPU that is not here, of tensors in host memory.
#pragma once

#include "onepass/plan.h"
#include "verify/case_tensors.h"

namespace onepass::emulator {

/// What onepass plans for these tensors, were they in the memory of that GPU and knew it no instruction past
/// compute capability 8.0.
Plan plan_on(const char* device, const verify::CaseTensors& tensors);

}  // namespace onepass::emulator
