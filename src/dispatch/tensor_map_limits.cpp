#include "dispatch/tensor_map_limits.h"

#include <fmt/format.h>

#include <initializer_list>
#include <numeric>

#include "backends/cuda/kernels/sm90/decode_layout.h"

namespace onepass {
namespace {

/// A dimension of this extent and stride (elements): 16-byte steps forward, below 2^40 bytes.
bool fits(std::int64_t extent, std::int64_t stride, std::int64_t bytes) {
  return extent <= 1 || (stride > 0 && stride * bytes % 16 == 0 && stride < (std::int64_t{1} << 40) / bytes);
}

struct MappedTensor {
  const char* name = "";
  RowExtents extents{0, 0};
  std::int64_t heads = 0;
  TensorStrides strides;
  DType dtype = DType::BF16;
};

std::optional<std::string> decline_strides(std::initializer_list<MappedTensor> tensors) {
  for (const auto& [name, extents, heads, strides, dtype] : tensors) {
    const std::int64_t bytes = dtype_bytes(dtype);
    if (strides.dim == 1 && fits(extents.batch, strides.batch, bytes) &&
        fits(extents.rows, strides.row, bytes) && fits(heads, strides.head, bytes))
      continue;
    return fmt::format(
        "needs strides of {} that are positive multiples of 16 bytes, and stride 1 in the last dimension",
        name);
  }
  return std::nullopt;
}

}  // namespace

RowExtents query_rows(const AttentionProblem& p) {
  if (p.q_layout == SequenceLayout::Packed) return {1, p.total_q};
  return {p.batch, p.seqlen_q};
}

RowExtents key_rows(const AttentionProblem& p) {
  switch (p.k_layout) {
    case SequenceLayout::Packed: return {1, p.total_k};
    case SequenceLayout::Paged: return {p.num_pages, p.page_size};
    default: return {p.batch, p.seqlen_k};
  }
}

int page_box(std::int64_t page_size, int tile_n) {
  return static_cast<int>(std::gcd(page_size, std::int64_t{tile_n}));
}

std::optional<std::string> decline_hopper(const AttentionProblem& p, const DeviceInfo& device) {
  if (device.kind != DeviceInfo::Kind::Cuda) return "runs on an NVIDIA GPU, and the device is a CPU";
  if (device.compute_capability != 90) {
    return fmt::format("is for compute capability 9.0, and {} has {}.{}", device.name,
                       device.compute_capability / 10, device.compute_capability % 10);
  }
  if (p.q_dtype == DType::F32) return "takes f16 and bf16, and q is f32";
  return std::nullopt;
}

std::optional<std::string> decline_tensor_maps(const AttentionProblem& p) {
  if (p.total_q == 0 || p.seqlen_q == 0) return "needs queries, and there are none";
  if (p.total_k == 0 || p.num_heads_k == 0) return "needs keys, and there are none";
  const RowExtents queries = query_rows(p), keys = key_rows(p);
  return decline_strides({{"q", queries, p.num_heads_q, p.q, p.q_dtype},
                          {"k", keys, p.num_heads_k, p.k, p.kv_dtype},
                          {"v", keys, p.num_heads_k, p.v, p.kv_dtype},
                          {"out", queries, p.num_heads_q, p.out, p.q_dtype}});
}

bool fits_boxes(const AttentionProblem& p) {
  return p.k_layout != SequenceLayout::Paged || p.page_size % cuda::kFewestBoxKeys == 0;
}

std::optional<std::string> decline_gradient_rows(const AttentionProblem& p) {
  const RowExtents queries = query_rows(p), keys = key_rows(p);
  const GradientProblem& g = *p.gradient;
  return decline_strides({{"dout", queries, p.num_heads_q, g.dout, p.q_dtype},
                          {"dq", queries, p.num_heads_q, g.dq, p.q_dtype},
                          {"dk", keys, p.num_heads_k, g.dk, p.q_dtype},
                          {"dv", keys, p.num_heads_k, g.dv, p.q_dtype}});
}

}  // namespace onepass
