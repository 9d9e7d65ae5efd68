// problem + device -> plan. Pure: tests call it with invented problems and devices.
#pragma once

#include "onepass/attention.h"
#include "problem/attention_problem.h"

namespace onepass {

/// The part of ForwardOptions that is a wish about how, not what.
struct PlanRequest {
  Backend backend = Backend::Auto;
  int num_threads = 0;
  int num_splits = 0;
  bool operator==(const PlanRequest&) const = default;
};

/// @throws NotSupported, listing every implementation's reason.
Plan make_plan(const char* call, const AttentionProblem& problem, const PlanRequest& request,
               const DeviceInfo& device);
/// The same without parts (mixed_plan.h).
Plan make_plan_of_one_launch(const char* call, const AttentionProblem& problem, const PlanRequest& request,
                             const DeviceInfo& device);

/// Names of workspace pieces. Split results: f32 [num_splits, B * Hq * Sq (or Hq * Tq), Dv], LSE without Dv.
inline constexpr const char* kPieceThreadScratch = "thread_scratch";
inline constexpr const char* kPieceSplitOut = "split_out";
inline constexpr const char* kPieceSplitLse = "split_lse";
inline constexpr const char* kPieceParts = "parts";    // workspace of one part of a plan, then of the next
inline constexpr const char* kPieceTicket = "ticket";  // 8 bytes: the next tile of sm90_forward
inline constexpr const char* kPieceArrivals = "arrivals";  // 8 bytes for each tile of rows of sm90_decode

/// Of backward calls on a GPU: f32 for each query row and head (kernels/common/gradient_rows.h), and dO's
/// rows one after another, [B, Hq, Sq, Dv] or [Hq, Tq, Dv], Dv rounded up to 8.
inline constexpr const char* kPieceLseLog2 = "lse_log2";
inline constexpr const char* kPieceDelta = "delta";
inline constexpr const char* kPieceDqSums = "dq_sums";  // f32 of sm90_backward, in an order of its own
inline constexpr const char* kPieceTurns = "turns";     // int32 for each block of dq_sums
inline constexpr const char* kPieceDout = "dout_copy";

/// The piece called `name` inside `workspace`; empty when the plan has none.
std::span<std::byte> workspace_piece(const Plan& plan, std::span<std::byte> workspace, const char* name);

}  // namespace onepass
