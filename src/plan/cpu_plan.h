// How the CPU implementations fill a plan.
#pragma once

#include "onepass/plan.h"
#include "plan/make_plan.h"

namespace onepass {

/// Step 1 computes (sequence, key head, query tile, split) items; step 2, only with splits, merges.
void lay_out_cpu_simd(Plan& plan, const PlanRequest& request);

/// One item per query row and head.
void lay_out_cpu_reference(Plan& plan, const PlanRequest& request);
/// Statistics of rows; gradients of sequences and key heads, or of parts of them; of the bias; of sinks.
void lay_out_cpu_simd_backward(Plan& plan, const PlanRequest& request);
/// One item per sequence and key head.
void lay_out_cpu_reference_backward(Plan& plan, const PlanRequest& request);

}  // namespace onepass
