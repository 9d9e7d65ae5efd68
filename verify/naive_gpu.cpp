#include "verify/naive_gpu.h"

#include <fmt/format.h>

#include <limits>

#include "backends/cuda/host/launch.h"
#include "backends/cuda/kernels/params.h"
#include "problem/attention_problem.h"
#include "support/message.h"

namespace onepass::verify {
namespace {

constexpr std::int64_t kTile = 64;  // kNaiveTile of the kernels
constexpr int kWarps = 8;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::size_t num_scores(const AttentionProblem& p) {
  return static_cast<std::size_t>(p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_k);
}

cuda::TensorParams tensor_params(const TensorView& view) {
  return {view.data, view.strides[0], view.strides[1], view.strides[2]};
}

}  // namespace

void NaiveGpuCall::require_support(const char* call, const AttentionProblem& p) {
  const bool dense = p.q_layout == SequenceLayout::Dense && p.k_layout == SequenceLayout::Dense &&
                     !p.has_seqused_q && !p.has_seqused_k;
  const bool plain =
      p.softcap == 0 && !p.has_alibi && !p.has_bias && !p.has_sinks && !p.has_k_descale && !p.has_v_descale;
  const bool types = p.q_dtype != DType::F32 && p.kv_dtype == p.q_dtype && p.q.dim == 1 && p.k.dim == 1 &&
                     p.v.dim == 1 && p.out.dim == 1;
  const std::int64_t tiles = ceil_div(p.seqlen_q, kTile) *
                             std::max(ceil_div(p.seqlen_k, kTile), ceil_div(p.head_dim_v, kTile)) * p.batch *
                             p.num_heads_q;
  if (dense && plain && types && tiles <= std::numeric_limits<int>::max()) return;
  throw NotSupported(format_message(call, fmt::format("the naive evaluation does not take {}", to_string(p)),
                                    "dense f16 or bf16 tensors with causal masks, windows and head groups",
                                    "leave naive out, or choose such a case"));
}

NaiveGpuCall::NaiveGpuCall(const char* call, const Plan& plan, int device_idx)
    : problem_((require_support(call, *plan.problem), plan.problem)),
      device_idx_(device_idx),
      scores_(num_scores(*problem_) * sizeof(float), device_idx),
      probabilities_(num_scores(*problem_) * 2, device_idx) {}

void NaiveGpuCall::run(const ForwardArguments& args) const {
  const AttentionProblem& p = *problem_;
  cuda::NaiveParams params{};
  params.q = tensor_params(args.q);
  params.k = tensor_params(args.k);
  params.v = tensor_params(args.v);
  params.o = tensor_params(args.out);
  params.scores = reinterpret_cast<float*>(scores_.data());
  params.probabilities = probabilities_.data();
  params.batch = static_cast<int>(p.batch);
  params.num_heads_q = static_cast<int>(p.num_heads_q);
  params.group = static_cast<int>(p.group());
  params.seqlen_q = static_cast<int>(p.seqlen_q);
  params.seqlen_k = static_cast<int>(p.seqlen_k);
  params.head_dim = static_cast<int>(p.head_dim);
  params.head_dim_v = static_cast<int>(p.head_dim_v);
  params.mask_kind = static_cast<int>(mask_kind(p.causal));
  params.window_left = p.window_left;
  params.window_right = p.window_right;
  params.softmax_scale = static_cast<float>(p.softmax_scale);

  const std::int64_t heads = p.batch * p.num_heads_q, row_tiles = ceil_div(p.seqlen_q, kTile);
  const std::pair<KernelFamily, std::int64_t> steps[] = {
      {KernelFamily::NaiveScores, ceil_div(p.seqlen_k, kTile) * row_tiles * heads},
      {KernelFamily::NaiveSoftmax, ceil_div(heads * p.seqlen_q, kWarps)},
      {KernelFamily::NaiveValues, ceil_div(p.head_dim_v, kTile) * row_tiles * heads}};
  const cuda::Driver& driver = cuda::Driver::required("naive");
  const cuda::ContextScope context(driver, device_idx_);
  for (const auto& [family, grid] : steps) {
    if (grid == 0) continue;
    KernelSpec spec;
    spec.family = family;
    spec.architecture = driver.compute_capability(device_idx_);
    spec.dtype = p.q_dtype;
    spec.num_warps = kWarps;
    cuda::launch_kernel(driver, KernelStore::instance().get(spec, device_idx_), grid, {&params}, {});
  }
}

}  // namespace onepass::verify
