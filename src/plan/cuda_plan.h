// Plans for NVIDIA GPUs: steps are kernel names and grids.
#pragma once

#include "plan/make_plan.h"
#include "store/kernel_spec.h"

namespace onepass {

void lay_out_sm80_forward(Plan& plan, const PlanRequest& request);
void lay_out_sm90_forward(Plan& plan, const PlanRequest& request);
void lay_out_sm90_decode(Plan& plan, const PlanRequest& request);
void lay_out_sm90_backward(Plan& plan, const PlanRequest& request);
void lay_out_sm80_backward(Plan& plan, const PlanRequest& request);

/// Elements of a row of kPieceDout.
constexpr std::int64_t dout_copy_pitch(std::int64_t head_dim_v) { return (head_dim_v + 7) / 8 * 8; }

/// The kernel of a plan that computes attention, beside those that fill and merge; null when there is nothing
/// to compute.
const PlannedKernel* forward_kernel(const Plan& plan);

/// Row tiles of a head, or of the heads that share tiles: of a longest sequence.
std::int64_t num_row_tiles(const Plan& plan);

/// What merge() launches on a GPU of this compute capability: a warp per row and head.
KernelSpec merge_states_kernel(int compute_capability);

/// The steps of a mixed plan: fills rows of no sequence, and writes the lengths for its parts.
void lay_out_lengths(Plan& plan);

/// What writes the lengths for the parts of a mixed plan: a thread for each sequence.
KernelSpec part_lengths_kernel(int compute_capability);

/// What append_kv() launches, of new rows of one dtype for a cache of that or of 8 bits: a block per row,
/// which it reads in pieces of load_bytes (16 or 2).
KernelSpec append_kv_kernel(int compute_capability, DType dtype, DType stored, int load_bytes);

}  // namespace onepass
