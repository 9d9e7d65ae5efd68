#include "dispatch/kernel_name.h"

#include <fmt/format.h>

namespace onepass {

std::string forward_kernel_name(const char* family, const AttentionProblem& problem, std::int64_t tile_m,
                                std::int64_t tile_n) {
  std::string name = fmt::format("{}_{}", family, dtype_name(problem.q_dtype));
  if (problem.kv_dtype != problem.q_dtype) name += fmt::format("_kv{}", dtype_name(problem.kv_dtype));
  name += fmt::format("_d{}_v{}_m{}n{}", problem.head_dim, problem.head_dim_v, tile_m, tile_n);
  if (problem.q_layout == SequenceLayout::Packed) name += "_packed";
  if (problem.k_layout == SequenceLayout::Paged) name += "_paged";
  if (problem.causal == Causal::BottomRight) name += "_causal";
  if (problem.causal == Causal::TopLeft) name += "_causaltl";
  if (problem.window_left >= 0 || problem.window_right >= 0) name += "_window";
  if (problem.softcap > 0) name += "_softcap";
  if (problem.has_alibi) name += "_alibi";
  if (problem.has_bias) name += "_bias";
  if (problem.has_sinks) name += "_sinks";
  return name;
}

}  // namespace onepass
