#include "plan/explain.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "backends/cuda/kernels/common/key_parts.h"
#include "backends/cuda/kernels/sm90/decode_layout.h"
#include "dispatch/accounting.h"
#include "plan/cuda_plan.h"
#include "plan/planned_kernel.h"
#include "plan/step_occupancy.h"

namespace onepass {
namespace {

void add_line(std::string& text, std::string_view label, const std::string& value) {
  text += fmt::format("{:<18}{}\n", label, value);
}

std::string device_text(const DeviceInfo& device) {
  const bool cpu = device.kind == DeviceInfo::Kind::Cpu;
  return fmt::format("{}: {} {}{}, {}", device.name, device.num_processors, cpu ? "cores" : "multiprocessors",
                     device.instruction_set.empty() ? "" : " with " + device.instruction_set,
                     cpu ? "peaks estimated from cores x clock x width" : "published peaks");
}

std::string peaks_text(const DeviceInfo& device) {
  std::string text = fmt::format("f32 {}, f16/bf16 {}", decimal_text(device.f32_flops_per_second, "FLOP/s"),
                                 decimal_text(device.f16_flops_per_second, "FLOP/s"));
  if (device.f8_flops_per_second > 0) text += ", f8 " + decimal_text(device.f8_flops_per_second, "FLOP/s");
  return text + ", memory " + decimal_text(device.memory_bytes_per_second, "B/s");
}

void add_problem_and_device(std::string& text, const AttentionProblem& problem, const DeviceInfo& device) {
  add_line(text, "problem", to_string(problem));
  add_line(text, "device", device_text(device));
  add_line(text, "  peaks", peaks_text(device));
}

std::string registers_text(const StepOccupancy& o) {
  switch (o.registers_from) {
    case RegistersFrom::Loaded: return fmt::format("{} a thread, as loaded by the driver", o.registers);
    case RegistersFrom::Bundle: return fmt::format("{} a thread, as compiled for the bundle", o.registers);
    case RegistersFrom::LaunchBound: break;
  }
  return fmt::format("at most {} a thread, by the bound at launch; no machine code is at hand", o.registers);
}

std::string rounds_text(const StepOccupancy& o) {
  if (!o.rounds) return "none: a multiprocessor cannot hold a block";
  const char* at_most = o.exact_rounds ? "" : "at most ";
  std::string text = o.num_tiles ? fmt::format("{}{} for {} blocks that stay, {}{:.2f} each", at_most,
                                               *o.num_tiles, o.blocks_at_once, at_most, *o.rounds)
                                 : fmt::format("{}{:.2f}, with {} blocks{} at once", at_most, *o.rounds,
                                               o.blocks_at_once, o.exact_blocks ? "" : " or more");
  if (o.last_round) {
    text += fmt::format("; the last {} fills {:.0f} % of the GPU", o.num_tiles ? "round" : "wave",
                        *o.last_round * 100);
  }
  return text;
}

void add_occupancy(std::string& text, const StepOccupancy& o) {
  add_line(text, "  buffers",
           fmt::format("{} for Q, {} for K and V {}", o.query_buffers, o.key_value_stages,
                       o.key_value_share ? "in turn" : "each"));
  add_line(text, "  shared memory",
           fmt::format("{} a block, {:.0f} % of the {} of a multiprocessor",
                       bytes_text(static_cast<double>(o.shared_bytes)),
                       100.0 * static_cast<double>(o.shared_bytes) /
                           static_cast<double>(o.shared_bytes_per_processor),
                       bytes_text(static_cast<double>(o.shared_bytes_per_processor))));
  add_line(text, "  registers", registers_text(o));
  const char* or_more = o.registers_from == RegistersFrom::LaunchBound ? " or more" : "";
  add_line(text, "  occupancy",
           fmt::format("{} block{} a multiprocessor{} (shared memory {}, threads {}, registers {}{})",
                       o.limits.blocks(), o.limits.blocks() == 1 ? "" : "s", o.exact_blocks ? "" : " or more",
                       o.limits.by_shared_memory, o.limits.by_threads, o.limits.by_registers, or_more));
  add_line(text, o.num_tiles ? "  tiles" : "  waves", rounds_text(o));
}

void add_accounting(std::string& text, const AttentionProblem& problem, const Accounting& a) {
  const char* bound = is_ragged(problem) ? "at most " : "";  // lengths are known by their maxima only
  add_line(text, "work", fmt::format("{}{} in unmasked pairs", bound, decimal_text(a.flops, "FLOP")));
  add_line(text, "bytes",
           fmt::format("{}{} in one pass, {} if every tensor is read once", bound,
                       bytes_text(a.bytes_one_pass), bytes_text(a.bytes_lower_bound)));
  add_line(text, "", fmt::format("{}{} with S and P materialised", bound, bytes_text(a.bytes_materialised)));
  const double intensity_once = a.bytes_lower_bound > 0 ? a.flops / a.bytes_lower_bound : 0;  // what bounds
  add_line(text, "intensity",
           fmt::format("{:.1f} FLOP/byte if tensors are read once, {:.1f} in one pass, {:.1f} materialised",
                       intensity_once, a.intensity_one_pass, a.intensity_materialised));
  add_line(text, "ridge", fmt::format("{:.1f} FLOP/byte; below it memory is the limit", a.ridge));
  add_line(text, "bound",
           fmt::format("{} (compute {}, memory {} if every byte moves once)",
                       a.seconds_compute >= a.seconds_memory ? "compute" : "memory",
                       seconds_text(a.seconds_compute), seconds_text(a.seconds_memory)));
  add_line(text, "time",
           fmt::format("at least {}{}", seconds_text(a.seconds_lower_bound),
                       is_ragged(problem) ? " if every sequence has the longest length" : ""));
}

std::string splits_text(const Plan& plan) {
  const PlannedKernel* forward = plan.device.kind == DeviceInfo::Kind::Cpu ? nullptr : forward_kernel(plan);
  const bool stays = forward != nullptr && forward->spec.stays;
  if (stays && forward->spec.ragged) {
    return "1: keys are shared out to blocks by their lengths, and parts merged";
  }
  if (plan.problem->batch_invariant && plan.num_splits > 1) {
    return fmt::format("up to {} parts of {} keys from a sequence's first, of sequences of few query rows",
                       plan.num_splits, kPartKeys);
  }
  std::string text = plan.num_splits == 1
                         ? "1: the keys of a tile are read in one piece"
                         : fmt::format("{} parts of the keys, merged afterwards", plan.num_splits);
  if (stays) text += ", by number: all sequences are as long";
  return text;
}

std::string gather_text(const AttentionProblem& problem) {
  return fmt::format("key by key, {} warps: boxes need pages of a multiple of {} keys, and these have {}",
                     cuda::kGatherWarps, cuda::kFewestBoxKeys, problem.page_size);
}

/// Kernels, tiles and splits of a plan without its parts.
void add_steps(std::string& text, const Plan& plan) {
  const bool cpu = plan.device.kind == DeviceInfo::Kind::Cpu;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    add_line(
        text, fmt::format("step {}", i + 1),
        fmt::format(fmt::runtime(cpu ? "{}: {} work items on {} threads" : "{}: {} blocks of {} threads"),
                    plan.steps[i].kernel, plan.steps[i].num_work_items, plan.steps[i].num_threads));
    if (const auto occupancy = step_occupancy(plan, plan.steps[i], Bundle::shipped()))
      add_occupancy(text, *occupancy);
    if (plan.steps[i].gpu_kernel != nullptr && plan.steps[i].gpu_kernel->spec.gather)
      add_line(text, "  copies", gather_text(*plan.problem));
  }
  if (!plan.parts.empty()) return;
  add_line(text, "tiles",
           fmt::format("{} rows (queries of {} head{}) x {} keys", plan.tile_m, plan.tile_heads,
                       plan.tile_heads == 1 ? "" : "s that share a key head", plan.tile_n));
  if (plan.item_heads > 1) {
    add_line(text, "items", fmt::format("{} key heads together, in the order of memory", plan.item_heads));
  }
  add_line(text, "splits", splits_text(plan));
}

/// Of a backward call: ranges of heads, those of one size in one line.
void add_head_parts(std::string& text, const std::vector<Plan>& parts) {
  for (std::size_t i = 0, end = 0; i < parts.size(); i = end) {
    const std::int64_t heads_k = parts[i].problem->num_heads_k;
    while (end < parts.size() && parts[end].problem->num_heads_k == heads_k) ++end;
    add_line(text, i == 0 ? "then" : "and then",
             fmt::format("{} time{} {} key head{}", end - i, end - i == 1 ? "" : "s", heads_k,
                         heads_k == 1 ? "" : "s"));
    add_steps(text, parts[i]);
  }
}

/// Which sequences of a mixed batch a part is for.
std::string rows_text(const std::vector<Plan>& parts, std::size_t part) {
  const auto most = [&](std::size_t i) { return parts[i].problem->seqlen_q; };
  if (part == 0) return fmt::format("more than {}", most(1));
  if (part + 1 == parts.size()) return fmt::format("up to {}", most(part));
  return fmt::format("{} to {}", most(part + 1) + 1, most(part));
}

void add_parts(std::string& text, const Plan& plan) {
  if (plan.problem->gradient) return add_head_parts(text, plan.parts);
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    add_line(text, i == 0 ? "then" : "and then",
             fmt::format("sequences of {} query rows: {}", rows_text(plan.parts, i),
                         plan.parts[i].implementation));
    add_steps(text, plan.parts[i]);
  }
}

}  // namespace

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string decimal_text(double value, const char* unit) {
  constexpr std::array<const char*, 6> kPrefixes = {"", "K", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (value >= 1000 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  return fmt::format("{:.{}f} {}{}", value, prefix == 0 ? 0 : 2, kPrefixes[prefix], unit);
}

std::string seconds_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (seconds >= 1e-6) return fmt::format("{:.2f} us", seconds * 1e6);
  return fmt::format("{:.2f} ns", seconds * 1e9);
}

std::string explain_accounting(const AttentionProblem& problem, const DeviceInfo& device,
                               const Accounting& accounting) {
  std::string text;
  add_problem_and_device(text, problem, device);
  add_accounting(text, problem, accounting);
  return text;
}

std::string Plan::explain() const {
  std::string text;
  add_problem_and_device(text, *problem, device);
  add_line(text, "implementation", implementation);
  if (problem->batch_invariant) {
    const bool cpu = device.kind == DeviceInfo::Kind::Cpu;
    add_line(text, "batch invariant",
             problem->gradient
                 ? (cpu ? "plays no part in gradients on a CPU"
                        : "dQ, dK and dV add up in an order that follows from the sequence")
                 : "chosen by types, head sizes, masks and whether a sequence has few query rows, not by the "
                   "batch");
  }
  for (const Decline& decline : declines) {
    add_line(text, "  declined", decline.implementation + ": " + decline.reason);
  }
  add_steps(text, *this);
  add_parts(text, *this);
  add_line(text, "workspace", bytes_text(static_cast<double>(workspace_bytes())));
  for (const WorkspacePiece& piece : workspace) {
    add_line(
        text, "  " + piece.name,
        fmt::format("{} at offset {}", bytes_text(static_cast<double>(piece.bytes)), piece.offset_bytes));
  }
  add_accounting(text, *problem, accounting);
  return text;
}

}  // namespace onepass
