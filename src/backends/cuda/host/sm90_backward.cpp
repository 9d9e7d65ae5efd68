#include "backends/cuda/host/sm90_backward.h"

#include "backends/cuda/kernels/common/gradient_rows.h"
#include "dispatch/tensor_map_limits.h"
#include "plan/make_plan.h"
#include "problem/attention_problem.h"

namespace onepass::cuda {

Sm90BackwardParams sm90_backward_params(const Plan& plan, const PlannedKernel& kernel,
                                        const BackwardArguments& args, std::span<std::byte> workspace,
                                        const BackwardParams& backward, const TensorMapEncoder& encode) {
  const AttentionProblem& p = *plan.problem;
  const KernelSpec& spec = kernel.spec;
  const Sm90BackwardOrder& order = kernel.sm90_backward_order;
  const bool packed = p.q_layout == SequenceLayout::Packed;
  const RowExtents queries = query_rows(p), keys = key_rows(p);
  const auto map = [&](const TensorView& view, const TensorStrides& strides, const RowExtents& rows,
                       std::int64_t heads, std::int64_t head_dim, int box_rows) {
    return encode(tiled_tensor(view, p.q_dtype, strides, rows.batch, rows.rows, heads, head_dim, box_rows,
                               BoxColumns::Block, L2Fetch::Bytes256));
  };
  const auto piece = [&](const char* name) { return workspace_piece(plan, workspace, name).data(); };
  Sm90BackwardParams params{};
  params.q = map(args.forward.q, p.q, queries, p.num_heads_q, p.head_dim, spec.tile_m);
  params.k = map(args.forward.k, p.k, keys, p.num_heads_k, p.head_dim, spec.tile_n);
  params.v = map(args.forward.v, p.v, keys, p.num_heads_k, p.head_dim_v, spec.tile_n);
  params.dout = map(args.dout, p.gradient->dout, queries, p.num_heads_q, p.head_dim_v, spec.tile_m);
  params.backward = backward;
  params.backward.forward.m_blocks =
      fast_divisor(static_cast<int>((p.seqlen_q + spec.tile_m - 1) / spec.tile_m));
  params.backward.forward.tile_heads = fast_divisor(static_cast<int>(p.num_heads_q));
  params.dq_sums = reinterpret_cast<float*>(piece(kPieceDqSums));
  params.turns = reinterpret_cast<int*>(piece(kPieceTurns));
  params.ticket = reinterpret_cast<unsigned*>(piece(kPieceTicket));
  params.blocks_per_head =
      static_cast<int>(gradient_rows_per_head(packed, p.batch, p.seqlen_q, p.total_q) / spec.tile_m);
  params.n_blocks = static_cast<int>((p.seqlen_k + spec.tile_n - 1) / spec.tile_n);
  params.descending_heads = static_cast<int>(order.descending_heads);
  params.descending_group = static_cast<int>(order.descending_group);
  params.ascending_group = static_cast<int>(order.ascending_group);
  params.num_tiles = static_cast<int>(order.num_tiles);
  return params;
}

}  // namespace onepass::cuda
