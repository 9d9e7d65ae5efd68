// Invented problems and devices: planning needs no tensor and no hardware.
#pragma once

#include <cmath>

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass::testing {

/// A dense problem without a mask.
inline AttentionProblem dense_problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_k,
                                      std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim,
                                      DType dtype = DType::BF16) {
  AttentionProblem p;
  p.q_dtype = p.kv_dtype = p.bias_dtype = dtype;
  p.batch = batch;
  p.num_heads_q = heads_q;
  p.num_heads_k = heads_k;
  p.head_dim = p.head_dim_v = head_dim;
  p.seqlen_q = seqlen_q;
  p.seqlen_k = seqlen_k;
  p.total_q = batch * seqlen_q;
  p.total_k = batch * seqlen_k;
  p.softmax_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  p.has_lse = true;
  return p;
}

/// Row-major bf16 tensors [B, S, H, D].
inline AttentionProblem bf16_problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_k,
                                     std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim) {
  AttentionProblem problem = dense_problem(batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim);
  problem.q = problem.out = {seqlen_q * heads_q * head_dim, heads_q * head_dim, head_dim, 1};
  problem.k = problem.v = {seqlen_k * heads_k * head_dim, heads_k * head_dim, head_dim, 1};
  return problem;
}

/// Packed queries and keys: `batch` sequences of at most seqlen_q, seqlen_k rows.
inline AttentionProblem packed_problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_k,
                                       std::int64_t seqlen_q, std::int64_t total_q, std::int64_t seqlen_k,
                                       std::int64_t total_k, std::int64_t head_dim) {
  AttentionProblem p = dense_problem(batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim);
  p.q_layout = p.k_layout = SequenceLayout::Packed;
  p.total_q = total_q;
  p.total_k = total_k;
  return p;
}

/// 48 KiB of L1, 10 GFLOP/s and 1 GB/s per core.
inline DeviceInfo invented_cpu(int cores) {
  DeviceInfo d;
  d.name = "invented";
  d.kind = DeviceInfo::Kind::Cpu;
  d.num_processors = cores;
  d.memory_bytes = std::int64_t{1} << 34;
  d.l2_bytes = std::int64_t{32} << 20;
  d.l1_bytes_per_processor = 48 << 10;
  d.memory_bytes_per_second = 1e9 * cores;
  d.f32_flops_per_second = 10e9 * cores;
  d.f16_flops_per_second = 10e9 * cores;
  d.instruction_set = "AVX2";
  return d;
}

}  // namespace onepass::testing
