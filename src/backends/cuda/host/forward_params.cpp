#include "backends/cuda/host/forward_params.h"

#include <numbers>

#include "plan/cuda_plan.h"
#include "plan/mixed_plan.h"
#include "plan/planned_kernel.h"
#include "problem/attention_problem.h"

namespace onepass::cuda {
namespace {

IndexParams index_params(const TensorView& view) {
  return {static_cast<const int*>(view.data), view.present() ? view.strides[0] : 0};
}

void fill_score_terms(ForwardParams& params, const AttentionProblem& problem, const ForwardArguments& args,
                      bool score_terms) {
  if (problem.has_alibi) {
    const TensorView& t = args.alibi_slopes;
    params.alibi_slopes = static_cast<const float*>(t.data);
    params.alibi_batch_stride = t.rank == 2 ? t.strides[0] : 0;
    params.alibi_head_stride = t.strides[t.rank == 2 ? 1 : 0];
  }
  if (problem.has_bias) {
    const TensorView& t = args.bias;
    params.bias = t.data;
    params.bias_batch_stride = t.shape[0] == 1 ? 0 : t.strides[0];
    params.bias_head_stride = t.shape[1] == 1 ? 0 : t.strides[1];
    params.bias_row_stride = t.strides[2];
    params.bias_key_stride = t.strides[3];
    params.bias_is_f32 = t.dtype == DType::F32;
  }
  if (problem.has_sinks) {
    params.sinks = static_cast<const float*>(args.sinks.data);
    params.sinks_stride = args.sinks.strides[0];
  }
  params.softmax_scale = static_cast<float>(problem.softmax_scale);
  params.softmax_scale_log2 =
      static_cast<float>(score_terms ? std::numbers::log2e : problem.softmax_scale * std::numbers::log2e);
  params.softcap = static_cast<float>(problem.softcap);
}

}  // namespace

TensorParams tensor_params(const TensorView& view, const TensorStrides& strides) {
  return {view.data, strides.batch, strides.row, strides.head};
}

ForwardParams call_params(const AttentionProblem& p, const ForwardArguments& args, bool score_terms) {
  ForwardParams params{};
  params.q = tensor_params(args.q, p.q);
  params.k = tensor_params(args.k, p.k);
  params.v = tensor_params(args.v, p.v);
  params.o = tensor_params(args.out, p.out);
  if (p.has_lse) {
    const TensorView& t = args.softmax_lse;
    const auto first = static_cast<std::size_t>(t.rank - 2);
    params.lse = static_cast<float*>(t.data);
    params.lse_batch_stride = t.rank == 3 ? t.strides[0] : 0;
    params.lse_head_stride = t.strides[first];
    params.lse_row_stride = t.strides[first + 1];
  }
  params.cu_seqlens_q = index_params(args.cu_seqlens_q);
  params.cu_seqlens_k = index_params(args.cu_seqlens_k);
  params.seqused_q = index_params(args.seqused_q);
  params.seqused_k = index_params(args.seqused_k);
  if (p.k_layout == SequenceLayout::Paged) {
    params.block_table = static_cast<const int*>(args.block_table.data);
    params.table_batch_stride = args.block_table.strides[0];
    params.table_page_stride = args.block_table.strides[1];
  }
  fill_score_terms(params, p, args, score_terms);
  params.batch = static_cast<int>(p.batch);
  params.num_heads_q = static_cast<int>(p.num_heads_q);
  params.num_heads_k = static_cast<int>(p.num_heads_k);
  params.group = fast_divisor(static_cast<int>(p.group()));
  params.head_dim = static_cast<int>(p.head_dim);
  params.head_dim_v = static_cast<int>(p.head_dim_v);
  params.seqlen_q = static_cast<int>(p.seqlen_q);
  params.seqlen_k = static_cast<int>(p.seqlen_k);
  params.total_q = static_cast<int>(p.total_q);
  params.total_k = static_cast<int>(p.total_k);
  params.page_size = fast_divisor(static_cast<int>(p.page_size));
  params.num_pages = static_cast<int>(p.num_pages);
  params.max_pages = static_cast<int>(p.max_pages_per_sequence);
  params.mask_kind = static_cast<int>(mask_kind(p.causal));
  params.window_left = p.window_left;
  params.window_right = p.window_right;
  return params;
}

ForwardParams forward_params(const Plan& plan, const ForwardArguments& args, std::span<std::byte> workspace) {
  const AttentionProblem& p = *plan.problem;
  const PlannedKernel* forward = forward_kernel(plan);
  ForwardParams params = call_params(p, args, forward != nullptr && forward->spec.score_terms);
  params.split_o = reinterpret_cast<float*>(workspace_piece(plan, workspace, kPieceSplitOut).data());
  params.split_lse = reinterpret_cast<float*>(workspace_piece(plan, workspace, kPieceSplitLse).data());
  params.m_blocks = fast_divisor(static_cast<int>(num_row_tiles(plan)));
  params.tile_heads = fast_divisor(static_cast<int>(p.num_heads_q / plan.tile_heads));
  params.num_splits = fast_divisor(plan.num_splits);
  return params;
}

PartLengthsParams part_lengths_params(const Plan& plan, const ForwardArguments& args,
                                      std::span<std::byte> workspace) {
  PartLengthsParams params{};
  params.cu_seqlens_q = index_params(args.cu_seqlens_q);
  params.seqused_q = index_params(args.seqused_q);
  params.lengths = reinterpret_cast<int*>(workspace_piece(plan, workspace, kPiecePartLengths).data());
  params.batch = static_cast<int>(plan.problem->batch);
  for (const Plan& part : plan.parts) {
    params.most_rows[params.num_parts++] = static_cast<int>(part.problem->seqlen_q);
  }
  return params;
}

ForwardArguments part_arguments(const Plan& plan, std::size_t part, const ForwardArguments& args,
                                std::span<std::byte> workspace) {
  const std::int64_t batch = plan.problem->batch;
  const std::span<std::byte> lists = workspace_piece(plan, workspace, kPiecePartLengths);
  ForwardArguments arguments = args;
  arguments.seqused_q =
      make_view(lists.subspan(part * lists.size() / plan.parts.size()).data(), DType::I32, {batch});
  arguments.seqused_q.device = args.q.device;
  arguments.seqused_q.device_idx = args.q.device_idx;
  return arguments;
}

}  // namespace onepass::cuda
