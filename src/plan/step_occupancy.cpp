#include "plan/step_occupancy.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/cuda_plan.h"
#include "plan/planned_kernel.h"
#include "store/kernel_resources.h"
#include "store/store.h"

namespace onepass {
namespace {

std::pair<int, RegistersFrom> registers_of(const PlannedKernel& kernel, const Bundle& bundle) {
  const LoadedKernel* loaded = kernel.loaded.load(std::memory_order_acquire);
  if (loaded != nullptr && loaded->registers > 0) return {loaded->registers, RegistersFrom::Loaded};
  const Bundle::Entry* entry = bundle.find(kernel_name(kernel.spec), ImageKind::Cubin);
  if (entry != nullptr && entry->registers > 0) return {entry->registers, RegistersFrom::Bundle};
  return {register_budget(kernel.spec), RegistersFrom::LaunchBound};
}

double ratio(std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

/// `work` in rounds of blocks_at_once, where the GPU holds `most` at once.
void count_rounds(StepOccupancy& o, std::int64_t work, std::int64_t most) {
  if (o.blocks_at_once <= 0 || most <= 0) return;
  o.rounds = ratio(work, o.blocks_at_once);
  if (o.exact_rounds) o.last_round = ratio((work - 1) % o.blocks_at_once + 1, most);
}

}  // namespace

std::optional<StepOccupancy> step_occupancy(const Plan& plan, const PlanStep& step, const Bundle& bundle) {
  if (step.gpu_kernel == nullptr) return std::nullopt;
  const KernelSpec& spec = step.gpu_kernel->spec;
  const bool persistent = spec.family == KernelFamily::Sm90Forward || spec.stays;
  const bool decode = spec.family == KernelFamily::Sm90Decode;
  if (!persistent && !decode && spec.family != KernelFamily::Sm80Forward) return std::nullopt;
  StepOccupancy o;
  o.query_buffers = decode ? 0 : spec.two_query_stages ? 2 : 1;
  o.key_value_stages = spec.stages;
  o.key_value_share = decode;
  o.shared_bytes = static_cast<std::int64_t>(shared_bytes(spec));
  o.shared_bytes_per_processor = shared_bytes_per_processor(plan.device);
  std::tie(o.registers, o.registers_from) = registers_of(*step.gpu_kernel, bundle);
  o.limits = occupancy(spec, plan.device, o.registers);
  o.exact_blocks = o.registers_from != RegistersFrom::LaunchBound ||
                   o.limits.blocks() == std::min(o.limits.by_shared_memory, o.limits.by_threads);
  if (persistent) {
    o.num_tiles = decode ? step.gpu_kernel->decode_order.items
                         : num_row_tiles(plan) * plan.problem->num_heads_q * plan.problem->batch;
    o.exact_rounds = !spec.ragged;
    o.blocks_at_once = step.num_work_items;
    count_rounds(o, *o.num_tiles, plan.device.num_processors);
  } else {
    o.exact_rounds = o.exact_blocks;
    o.blocks_at_once = std::int64_t{plan.device.num_processors} * o.limits.blocks();
    count_rounds(o, step.num_work_items, o.blocks_at_once);
  }
  return o;
}

}  // namespace onepass
