#include "backends/cuda/host/sm90_forward.h"

#include <array>
#include <atomic>
#include <cstdint>

#include "backends/cuda/kernels/sm90/layout.h"
#include "dispatch/heuristics_sm90.h"
#include "plan/make_plan.h"
#include "problem/attention_problem.h"
#include "support/message.h"

namespace onepass::cuda {
namespace {

// Values of the driver's enumerations (cuda.h since CUDA 12.0).
constexpr int kElementF16 = 6, kElementBf16 = 9, kNoInterleave = 0, kSwizzle128 = 3, kPromoteTo256Bytes = 3,
              kFillZeros = 0;

/// [batch, rows, heads, head_dim] in boxes of 64 columns and box_rows rows.
TensorMap tensor_map(const Driver& driver, const TensorView& view, DType dtype, const TensorStrides& strides,
                     std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                     int box_rows) {
  const std::array<std::uint64_t, 4> extents = {
      static_cast<std::uint64_t>(head_dim), static_cast<std::uint64_t>(rows),
      static_cast<std::uint64_t>(heads), static_cast<std::uint64_t>(batch)};
  // The driver wants a multiple of 16 bytes also where a single element makes the stride meaningless.
  const auto bytes = [](std::int64_t extent, std::int64_t stride) {
    return extent > 1 ? static_cast<std::uint64_t>(2 * stride) : std::uint64_t{16};
  };
  const std::array<std::uint64_t, 3> steps = {bytes(rows, strides.row), bytes(heads, strides.head),
                                              bytes(batch, strides.batch)};
  const std::array<unsigned, 4> box = {kBlockColumns, static_cast<unsigned>(box_rows), 1, 1};
  const std::array<unsigned, 4> element_steps = {1, 1, 1, 1};
  TensorMap map{};
  driver.check(driver.api().cuTensorMapEncodeTiled(&map, dtype == DType::F16 ? kElementF16 : kElementBf16, 4,
                                                   view.data, extents.data(), steps.data(), box.data(),
                                                   element_steps.data(), kNoInterleave, kSwizzle128,
                                                   kPromoteTo256Bytes, kFillZeros),
               "cuTensorMapEncodeTiled");
  return map;
}

/// Never 0, and not the same again for 2^32 launches. Spread over 32 bits: a workspace that held small
/// integers before must not look as if this launch had drawn tickets already.
unsigned next_launch_id() {
  static std::atomic<unsigned> counter = 0;
  unsigned id = 0;
  while (id == 0)
    id = (counter.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9E3779B1u;  // odd: one to one
  return id;
}

}  // namespace

Sm90ForwardParams sm90_forward_params(const Driver& driver, const Plan& plan, const PlannedKernel& kernel,
                                      const ForwardArguments& args, std::span<std::byte> workspace,
                                      const ForwardParams& forward) {
  if (driver.api().cuTensorMapEncodeTiled == nullptr) {
    throw EnvironmentError(format_message("run", "the NVIDIA driver has no cuTensorMapEncodeTiled",
                                          "a driver of CUDA 12.0 or later on this GPU", "update the driver"));
  }
  const AttentionProblem& p = *plan.problem;
  const bool packed_q = p.q_layout == SequenceLayout::Packed;
  const RowExtents keys = key_rows(p);
  const KernelSpec& spec = kernel.spec;
  const Sm90TileOrder& order = kernel.sm90_order;
  Sm90ForwardParams params{};
  params.q = tensor_map(driver, args.q, p.q_dtype, p.q, packed_q ? 1 : p.batch,
                        packed_q ? p.total_q : p.seqlen_q, p.num_heads_q, p.head_dim, spec.tile_m);
  params.page_box = spec.paged ? page_box(p.page_size, spec.tile_n) : spec.tile_n;
  params.k = tensor_map(driver, args.k, p.q_dtype, p.k, keys.batch, keys.rows, p.num_heads_k, p.head_dim,
                        params.page_box);
  params.v = tensor_map(driver, args.v, p.q_dtype, p.v, keys.batch, keys.rows, p.num_heads_k, p.head_dim_v,
                        params.page_box);
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
