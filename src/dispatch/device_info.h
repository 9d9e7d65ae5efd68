// Recognising a GPU's model.
#pragma once

#include <string_view>

#include "onepass/plan.h"

namespace onepass {

/// Published figures of the model that a driver's product name ("NVIDIA H200") contains; all zeros when
/// unknown.
DeviceInfo device_like(std::string_view product_name);

}  // namespace onepass
