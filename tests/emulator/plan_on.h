// A plan for a GPU that is not here, of tensors in host memory.
#pragma once

#include "onepass/plan.h"
#include "verify/case_tensors.h"
#include "verify/gradient_tensors.h"

namespace onepass::emulator {

/// A known GPU, if it knew no instruction past this compute capability.
DeviceInfo emulated_device(const char* name, int compute_capability);

/// An H200 of three multiprocessors, whose memory is so slow that every call is a long one.
DeviceInfo small_device(int num_processors = 3);

/// Of kInvariantCases: an H200 for sm90_decode ("decode"), a GPU since Ampere for sm80_forward.
DeviceInfo invariant_device(const std::string& name);

Plan plan_on(const DeviceInfo& device, const ForwardArguments& args, const ForwardOptions& options);
/// What onepass plans for these tensors, were they in the memory of that GPU.
Plan plan_on(const DeviceInfo& device, const verify::CaseTensors& tensors);
Plan plan_on(const DeviceInfo& device, const verify::GradientTensors& tensors);

}  // namespace onepass::emulator
