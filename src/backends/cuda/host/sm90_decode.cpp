#include "backends/cuda/host/sm90_decode.h"

#include "backends/cuda/host/launch_id.h"
#include "dispatch/heuristics_decode.h"
#include "dispatch/heuristics_sm90.h"
#include "plan/make_plan.h"

namespace onepass::cuda {

Sm90DecodeParams sm90_decode_params(const Plan& plan, const PlannedKernel& kernel,
                                    const ForwardArguments& args, std::span<std::byte> workspace,
                                    const ForwardParams& forward, const TensorMapEncoder& encode) {
  const AttentionProblem& p = *plan.problem;
  const RowExtents keys = key_rows(p);
  Sm90DecodeParams params{};
  params.box_keys = decode_box_keys(p, kernel.spec);
  params.boxes = kernel.spec.tile_n / params.box_keys;
  params.k = encode(tiled_tensor(args.k, p.kv_dtype, p.k, keys.batch, keys.rows, p.num_heads_k, p.head_dim,
                                 params.box_keys));
  params.v = encode(tiled_tensor(args.v, p.kv_dtype, p.v, keys.batch, keys.rows, p.num_heads_k, p.head_dim_v,
                                 params.box_keys));
  params.num_items = static_cast<int>(kernel.decode_order.num_items);
  params.slots_in_flight = kernel.decode_order.slots_in_flight;
  params.forward = forward;
  params.arrivals =
      reinterpret_cast<unsigned long long*>(workspace_piece(plan, workspace, kPieceArrivals).data());
  params.launch_id = next_launch_id();
  return params;
}

}  // namespace onepass::cuda
