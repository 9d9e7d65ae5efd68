#include "cli/json_output.h"

#include <cmath>
#include <string>

#include "cli/text_output.h"
#include "plan/step_occupancy.h"

namespace onepass::cli {
namespace {

// The line that starts with `label`, without it and without the final full stop.
std::string message_part(const std::string& message, const std::string& label) {
  const std::size_t begin = message.find("\n  " + label);
  if (begin == std::string::npos) return {};
  const std::size_t text = begin + 3 + label.size();
  std::string part = message.substr(text, message.find('\n', text) - text);
  if (!part.empty() && part.back() == '.') part.pop_back();
  return part;
}

Json strides_to_json(const TensorStrides& strides) {
  return {{"batch", strides.batch}, {"row", strides.row}, {"head", strides.head}, {"dim", strides.dim}};
}

const char* name_of(RegistersFrom from) {
  switch (from) {
    case RegistersFrom::Loaded: return "driver";
    case RegistersFrom::Bundle: return "bundle";
    case RegistersFrom::LaunchBound: break;
  }
  return "launch bound";
}

Json occupancy_to_json(const StepOccupancy& o) {
  const auto optional = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  return {{"query_buffers", o.query_buffers},
          {"key_value_stages", o.key_value_stages},
          {"key_value_share", o.key_value_share},
          {"shared_bytes", o.shared_bytes},
          {"shared_bytes_per_processor", o.shared_bytes_per_processor},
          {"registers", o.registers},
          {"registers_from", name_of(o.registers_from)},
          {"blocks_per_processor", o.limits.blocks()},
          {"exact_blocks", o.exact_blocks},
          {"blocks_by_shared_memory", o.limits.by_shared_memory},
          {"blocks_by_threads", o.limits.by_threads},
          {"blocks_by_registers", o.limits.by_registers},
          {"blocks_at_once", o.blocks_at_once},
          {"tiles", optional(o.num_tiles)},
          {"waves", o.num_tiles ? Json(nullptr) : optional(o.rounds)},
          {"tiles_per_block", o.num_tiles ? optional(o.rounds) : Json(nullptr)},
          {"exact_rounds", o.exact_rounds},
          {"last_round", optional(o.last_round)}};
}

}  // namespace

Json number_to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json problem_to_json(const AttentionProblem& p) {
  Json json = {{"text", to_string(p)},
               {"q_dtype", dtype_name(p.q_dtype)},
               {"kv_dtype", dtype_name(p.kv_dtype)},
               {"batch", p.batch},
               {"num_heads_q", p.num_heads_q},
               {"num_heads_k", p.num_heads_k},
               {"seqlen_q", p.seqlen_q},
               {"seqlen_k", p.seqlen_k},
               {"head_dim", p.head_dim},
               {"head_dim_v", p.head_dim_v},
               {"q_layout", layout_name(p.q_layout)},
               {"k_layout", layout_name(p.k_layout)},
               {"total_q", p.total_q},
               {"total_k", p.total_k}};
  if (p.k_layout == SequenceLayout::Paged) {
    json["page_size"] = p.page_size;
    json["num_pages"] = p.num_pages;
    json["max_pages_per_sequence"] = p.max_pages_per_sequence;
  }
  json["causal"] = causal_name(p.causal);
  json["window"] = {p.window_left, p.window_right};
  json["softmax_scale"] = p.softmax_scale;
  json["softcap"] = p.softcap;
  Json features = Json::array();
  const std::pair<bool, const char*> flags[] = {{p.has_seqused_q, "seqused_q"},
                                                {p.has_seqused_k, "seqused_k"},
                                                {p.has_alibi, "alibi"},
                                                {p.has_bias, "bias"},
                                                {p.has_sinks, "sinks"},
                                                {p.has_k_descale, "k_descale"},
                                                {p.has_v_descale, "v_descale"},
                                                {p.k_descale_per_page, "k_descale_per_page"},
                                                {p.v_descale_per_page, "v_descale_per_page"},
                                                {p.has_lse, "lse"},
                                                {p.batch_invariant, "batch_invariant"}};
  for (const auto& [present, name] : flags) {
    if (present) features.push_back(name);
  }
  json["features"] = std::move(features);
  json["strides"] = {{"q", strides_to_json(p.q)},
                     {"k", strides_to_json(p.k)},
                     {"v", strides_to_json(p.v)},
                     {"out", strides_to_json(p.out)}};
  return json;
}

Json device_to_json(const DeviceInfo& d) {
  const bool cpu = d.kind == DeviceInfo::Kind::Cpu;
  Json json = {{"name", d.name},
               {"kind", cpu ? "cpu" : "cuda"},
               {"num_processors", d.num_processors},
               {"memory_bytes", d.memory_bytes},
               {"l2_bytes", d.l2_bytes},
               {"l1_bytes_per_processor", d.l1_bytes_per_processor}};
  if (cpu) {
    json["instruction_set"] = d.instruction_set;
  } else {
    json["compute_capability"] = d.compute_capability;
    json["shared_bytes_per_block"] = d.shared_bytes_per_block;
  }
  json["peaks"] = cpu ? "estimated" : "published";
  json["memory_bytes_per_second"] = d.memory_bytes_per_second;
  json["f32_flops_per_second"] = d.f32_flops_per_second;
  json["f16_flops_per_second"] = d.f16_flops_per_second;
  json["f8_flops_per_second"] = d.f8_flops_per_second;
  return json;
}

Json accounting_to_json(const Accounting& a) {
  return {{"flops", a.flops},
          {"bytes_materialised", a.bytes_materialised},
          {"bytes_one_pass", a.bytes_one_pass},
          {"bytes_lower_bound", a.bytes_lower_bound},
          {"intensity_materialised", a.intensity_materialised},
          {"intensity_one_pass", a.intensity_one_pass},
          {"ridge", a.ridge},
          {"seconds_compute", a.seconds_compute},
          {"seconds_memory", a.seconds_memory},
          {"seconds_lower_bound", a.seconds_lower_bound}};
}

Json declines_to_json(const std::vector<Decline>& declines) {
  Json json = Json::array();
  for (const Decline& decline : declines) {
    json.push_back({{"implementation", decline.implementation}, {"reason", decline.reason}});
  }
  return json;
}

Json plan_to_json(const Plan& plan);

Json parts_to_json(const Plan& plan) {
  Json parts = Json::array();
  for (const Plan& part : plan.parts) parts.push_back(plan_to_json(part));
  return parts;
}

Json plan_to_json(const Plan& plan) {
  Json steps = Json::array();
  for (const PlanStep& step : plan.steps) {
    steps.push_back({{"kernel", step.kernel},
                     {"num_work_items", step.num_work_items},
                     {"num_threads", step.num_threads}});
    if (const auto occupancy = step_occupancy(plan, step, Bundle::shipped()))
      steps.back()["occupancy"] = occupancy_to_json(*occupancy);
  }
  Json workspace = Json::array();
  for (const WorkspacePiece& piece : plan.workspace) {
    workspace.push_back({{"name", piece.name}, {"offset_bytes", piece.offset_bytes}, {"bytes", piece.bytes}});
  }
  return {{"implementation", plan.implementation},
          {"declines", declines_to_json(plan.declines)},
          {"steps", std::move(steps)},
          {"parts", parts_to_json(plan)},
          {"tile_m", plan.tile_m},
          {"tile_n", plan.tile_n},
          {"tile_heads", plan.tile_heads},
          {"item_heads", plan.item_heads},
          {"num_splits", plan.num_splits},
          {"num_threads", plan.num_threads},
          {"workspace_bytes", plan.workspace_bytes()},
          {"workspace", std::move(workspace)},
          {"accounting", accounting_to_json(plan.accounting)}};
}

Json to_json(const TimingSummary& t) {
  return {{"median", t.median},
          {"lower_quartile", t.lower_quartile},
          {"upper_quartile", t.upper_quartile},
          {"min", t.min},
          {"max", t.max}};
}

Json failure_to_json(const Failure& failure) {
  const std::string first = failure.message.substr(0, failure.message.find('\n'));
  return {{"kind", failure.kind},
          {"exit_status", static_cast<int>(failure.status)},
          {"message", failure.message},
          {"given", first},
          {"allowed", message_part(failure.message, "Allowed: ")},
          {"fix", message_part(failure.message, "Fix: ")}};
}

void print_json(const Json& document) {
  // File names and arguments may hold bytes that are no UTF-8; they are replaced rather than refused.
  print_text(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace onepass::cli
