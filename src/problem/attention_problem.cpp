#include "problem/attention_problem.h"

#include <fmt/format.h>

namespace onepass {

const char* layout_name(SequenceLayout layout) {
  switch (layout) {
    case SequenceLayout::Dense: return "dense";
    case SequenceLayout::Packed: return "packed";
    case SequenceLayout::Paged: return "paged";
  }
  return "?";
}

const char* causal_name(Causal causal) {
  switch (causal) {
    case Causal::None: return "none";
    case Causal::BottomRight: return "bottom-right";
    case Causal::TopLeft: return "top-left";
  }
  return "?";
}

const char* backend_name(Backend backend) {
  switch (backend) {
    case Backend::Auto: return "auto";
    case Backend::Cpu: return "cpu";
    case Backend::Reference: return "reference";
    case Backend::Cuda: return "cuda";
  }
  return "?";
}

std::string to_string(const AttentionProblem& p) {
  std::string text = fmt::format(
      "{}, batch {}, heads {}/{}, seqlen_q {}{} {}, seqlen_k {}{} {}, head_dim {}/{}", dtype_name(p.q_dtype),
      p.batch, p.num_heads_q, p.num_heads_k, p.q_layout == SequenceLayout::Dense ? "" : "<= ", p.seqlen_q,
      layout_name(p.q_layout), p.k_layout == SequenceLayout::Dense ? "" : "<= ", p.seqlen_k,
      layout_name(p.k_layout), p.head_dim, p.head_dim_v);
  if (p.k_layout == SequenceLayout::Paged) text += fmt::format(", page_size {}", p.page_size);
  if (p.kv_dtype != p.q_dtype) text += fmt::format(", k/v {}", dtype_name(p.kv_dtype));
  if (p.causal != Causal::None) text += fmt::format(", causal {}", causal_name(p.causal));
  if (p.window_left >= 0 || p.window_right >= 0) {
    text += fmt::format(", window ({}, {})", p.window_left, p.window_right);
  }
  text += fmt::format(", scale {:.6g}", p.softmax_scale);
  if (p.softcap > 0) text += fmt::format(", softcap {:.6g}", p.softcap);
  const std::pair<bool, const char*> features[] = {
      {p.has_alibi, "alibi"},
      {p.has_bias, "bias"},
      {p.has_sinks, "sinks"},
      {p.has_seqused_q, "seqused_q"},
      {p.has_seqused_k, "seqused_k"},
      {p.has_k_descale, p.k_descale_per_page ? "k_descale per page" : "k_descale"},
      {p.has_v_descale, p.v_descale_per_page ? "v_descale per page" : "v_descale"},
      {p.has_lse, "lse"},
      {p.batch_invariant, "batch_invariant"},
      {p.memory == DeviceKind::Cuda, "in GPU memory"}};
  for (const auto& [present, name] : features) {
    if (present) text += fmt::format(", {}", name);
  }
  if (p.gradient) {
    text += ", backward";
    if (p.gradient->has_dlse) text += ", dlse";
    if (p.gradient->has_dsinks) text += ", dsinks";
    if (p.gradient->has_dbias) text += fmt::format(", dbias {}", dtype_name(p.gradient->dbias_dtype));
  }
  return text;
}

}  // namespace onepass
