// Plans for NVIDIA GPUs: steps are kernel names and grids.
#pragma once

#include "plan/make_plan.h"

namespace onepass {

void lay_out_sm80_forward(Plan& plan, const PlanRequest& request);

}  // namespace onepass
