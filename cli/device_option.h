// --device: the name of a GPU to plan for, or of this machine.
#pragma once

#include <string>

#include "onepass/plan.h"

namespace onepass::cli {

inline constexpr const char* kThisCpu = "this-cpu";

/// this-cpu, or one of known_devices(). @throws InvalidArgument that lists them.
DeviceInfo device_by_name(const std::string& call, const std::string& name, const std::string& also_allowed);

}  // namespace onepass::cli
