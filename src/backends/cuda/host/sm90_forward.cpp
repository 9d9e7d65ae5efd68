#include "backends/cuda/host/sm90_forward.h"

#include <cstdint>

#include "backends/cuda/host/launch_id.h"
#include "backends/cuda/host/tensor_map.h"
#include "dispatch/tensor_map_limits.h"
#include "plan/make_plan.h"
#include "problem/attention_problem.h"

namespace onepass::cuda {

Sm90ForwardParams sm90_forward_params(const Driver& driver, const Plan& plan, const PlannedKernel& kernel,
                                      const ForwardArguments& args, std::span<std::byte> workspace,
                                      const ForwardParams& forward) {
  const AttentionProblem& p = *plan.problem;
  const bool packed_q = p.q_layout == SequenceLayout::Packed;
  const RowExtents keys = key_rows(p);
  const KernelSpec& spec = kernel.spec;
  const Sm90TileOrder& order = kernel.sm90_order;
  Sm90ForwardParams params{};
  const auto encode = [&](const TensorView& view, const TensorStrides& strides, std::int64_t batch,
                          std::int64_t rows, std::int64_t heads, std::int64_t head_dim, int box_rows) {
    return encode_tensor_map(driver, tiled_tensor(view, p.q_dtype, strides, batch, rows, heads, head_dim,
                                                  box_rows, BoxColumns::Block, L2Fetch::Bytes256));
  };
  params.q = encode(args.q, p.q, packed_q ? 1 : p.batch, packed_q ? p.total_q : p.seqlen_q, p.num_heads_q,
                    p.head_dim, spec.tile_m);
  params.page_box = spec.paged ? page_box(p.page_size, spec.tile_n) : spec.tile_n;
  params.k = encode(args.k, p.k, keys.batch, keys.rows, p.num_heads_k, p.head_dim, params.page_box);
  params.v = encode(args.v, p.v, keys.batch, keys.rows, p.num_heads_k, p.head_dim_v, params.page_box);
  params.forward = forward;
  params.ticket =
      reinterpret_cast<unsigned long long*>(workspace_piece(plan, workspace, kPieceTicket).data());
  params.launch_id = next_launch_id();
  params.draw_early = order.draw_early;
  params.num_tiles = static_cast<int>(order.num_tiles);
  params.head_group = fast_divisor(static_cast<int>(order.head_group));
  params.group_tiles = fast_divisor(static_cast<int>(order.head_group * params.forward.m_blocks.divisor));
  return params;
}

}  // namespace onepass::cuda
