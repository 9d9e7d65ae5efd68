#include "backends/cuda/host/sm90_decode.h"

#include "backends/cuda/host/launch_id.h"
#include "backends/cuda/host/scale_params.h"
#include "backends/cuda/kernels/sm90/decode_layout.h"
#include "dispatch/heuristics_decode.h"
#include "dispatch/tensor_map_limits.h"
#include "plan/make_plan.h"

namespace onepass::cuda {
Sm90DecodeParams sm90_decode_params(const Plan& plan, const PlannedKernel& kernel,
                                    const ForwardArguments& args, std::span<std::byte> workspace,
                                    const ForwardParams& forward, const TensorMapEncoder& encode) {
  const AttentionProblem& p = *plan.problem;
  const RowExtents keys = key_rows(p);
  Sm90DecodeParams params{};
  const auto map = [&](const TensorView& view, const TensorStrides& strides, std::int64_t head_dim) {
    const int stored = decode_columns(static_cast<int>(head_dim), kv_bytes(kernel.spec));
    const BoxColumns columns = decode_copies_rows(stored) ? BoxColumns::All : BoxColumns::Block;
    return encode(tiled_tensor(view, p.kv_dtype, strides, keys.batch, keys.rows, p.num_heads_k, head_dim,
                               params.box_keys, columns, L2Fetch::Bytes128));
  };
  params.box_keys = decode_box_keys(p, kernel.spec);
  params.boxes = kernel.spec.tile_n / params.box_keys;
  if (!kernel.spec.gather) {
    params.k = map(args.k, p.k, p.head_dim);
    params.v = map(args.v, p.v, p.head_dim_v);
  }
  params.k_scale = scale_params(args.k_descale);
  params.v_scale = scale_params(args.v_descale);
  params.team = fast_divisor(kernel.decode_order.team);
  params.num_items = static_cast<int>(kernel.decode_order.items);
  params.rounds = kernel.decode_order.rounds;
  params.num_shares = kernel.decode_order.num_shares;
  params.slots_in_flight = kernel.decode_order.slots_in_flight;
  params.forward = forward;
  params.arrivals =
      reinterpret_cast<unsigned long long*>(workspace_piece(plan, workspace, kPieceArrivals).data());
  params.launch_id = next_launch_id();
  return params;
}

}  // namespace onepass::cuda
