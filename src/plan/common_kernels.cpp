#include "plan/common_kernels.h"

#include <cmath>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "onepass/plan.h"
#include "plan/cuda_plan.h"
#include "plan/make_plan.h"
#include "plan/planned_kernel.h"
#include "problem/attention_problem.h"

namespace onepass {
namespace {

constexpr int kPtxArchitecture = 80;

/// A GPU by what kernels depend on. The numbers of multiprocessors and of bytes per second decide splits and
/// which blocks stay; the problems below force them to be on one side or the other.
struct Target {
  int compute_capability;
  std::int64_t shared_kib;  // of a thread block: device_info.cpp has the source
  ImageKind kind;
};
constexpr Target kTargets[] = {
    {80, 163, ImageKind::Cubin}, {86, 99, ImageKind::Cubin}, {89, 99, ImageKind::Cubin},
    {90, 227, ImageKind::Cubin}, {100, 227, ImageKind::Ptx}, {120, 99, ImageKind::Ptx},
};

struct HeadDims {
  int qk, v;
};
constexpr HeadDims kPrefillDims[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
constexpr HeadDims kGroupedDims[] = {{64, 64}, {128, 128}, {256, 256}, {576, 512}};
constexpr HeadDims kUsualDims[] = {{64, 64}, {128, 128}};
constexpr HeadDims kMostUsualDims[] = {{128, 128}};
constexpr HeadDims kShortDims[] = {{64, 64}, {96, 96}, {128, 128}};
constexpr HeadDims kTermsDims[] = {{64, 64}, {128, 128}, {256, 256}};

/// Models of other head dims are published in bf16.
constexpr bool comes_in_f16(const HeadDims& dims) {
  return dims.qk == dims.v && (dims.qk == 64 || dims.qk == 128);
}

constexpr DType kBothTypes[] = {DType::BF16, DType::F16};
constexpr DType kBf16[] = {DType::BF16};

constexpr SequenceLayout kBothLayouts[] = {SequenceLayout::Dense, SequenceLayout::Paged};
constexpr SequenceLayout kDense[] = {SequenceLayout::Dense};
constexpr SequenceLayout kPaged[] = {SequenceLayout::Paged};

enum class Mask { None, Causal, Window };

constexpr SequenceLayout kDenseQ = SequenceLayout::Dense;
constexpr SequenceLayout kPackedQ = SequenceLayout::Packed;  // with the kernel that fills rows of no sequence

/// What an engine does all day. Each row costs a kernel for every dtype, head_dim, layout and target unless
/// the rows above name the same, about a second of one core and 15 kB; together they keep to 10 MB and to
/// what two cores build in three minutes. The rest compiles on demand.
struct Work {
  std::int64_t batch, num_heads_q, num_heads_k, seqlen_q, seqlen_k;
  SequenceLayout q_layout;
  Mask mask;
  double softcap;
  std::span<const DType> dtypes;  // f16 for some head_dims only: comes_in_f16()
  std::span<const HeadDims> head_dims;
  std::span<const SequenceLayout> layouts;  // of k and v
  bool backward = false;                    // of such a call, whose layout is dense or packed
  std::int64_t page_size = 16;
};
constexpr Work kWork[] = {
    // prefill; its second row for softcap, ALiBi and bias alike
    {4, 32, 32, 4096, 4096, kDenseQ, Mask::Causal, 0, kBothTypes, kPrefillDims, kDense},
    {4, 32, 32, 4096, 4096, kDenseQ, Mask::Causal, 50, kBf16, kTermsDims, kDense},
    // the same for kernels that are written for one mask (sm90_forward), and those of short prompts
    {4, 32, 32, 4096, 4096, kDenseQ, Mask::None, 0, kBothTypes, kPrefillDims, kDense},
    {4, 32, 32, 4096, 4096, kDenseQ, Mask::Window, 0, kBf16, kTermsDims, kDense},
    {32, 32, 32, 512, 512, kDenseQ, Mask::None, 0, kBothTypes, kShortDims, kDense},
    {16, 32, 32, 1024, 1024, kDenseQ, Mask::Causal, 0, kBothTypes, kShortDims, kDense},
    {16, 32, 32, 1024, 1024, kDenseQ, Mask::Window, 0, kBf16, kUsualDims, kDense},
    // packed prompts of any lengths
    {16, 32, 32, 4096, 4096, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kDense},
    {16, 32, 32, 4096, 4096, kPackedQ, Mask::None, 0, kBothTypes, kUsualDims, kDense},
    {32, 32, 32, 512, 512, kPackedQ, Mask::None, 0, kBothTypes, kUsualDims, kDense},
    {16, 32, 32, 1024, 1024, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kDense},
    // parts of prompts against a paged cache
    {16, 32, 32, 4096, 4096, kPackedQ, Mask::Causal, 0, kBothTypes, kPrefillDims, kPaged},
    {16, 32, 32, 1024, 1024, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kPaged},
    {16, 32, 32, 4096, 4096, kPackedQ, Mask::Causal, 50, kBf16, kTermsDims, kPaged},
    // decode with grouped heads: many sequences, an uneven number of them, a few of some lengths, one
    {256, 32, 8, 1, 1024, kPackedQ, Mask::Causal, 0, kBothTypes, kGroupedDims, kBothLayouts},
    {100, 32, 8, 1, 4096, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kBothLayouts},
    {16, 32, 8, 1, 1024, kPackedQ, Mask::Causal, 0, kBothTypes, kGroupedDims, kBothLayouts},
    {4, 32, 8, 1, 4096, kPackedQ, Mask::Causal, 0, kBothTypes, kGroupedDims, kBothLayouts},
    {1, 32, 8, 1, 4096, kPackedQ, Mask::Causal, 0, kBothTypes, kGroupedDims, kBothLayouts},
    {1, 32, 8, 1, 131072, kPackedQ, Mask::Causal, 0, kBothTypes, kGroupedDims, kBothLayouts},
    {256, 32, 8, 1, 1024, kPackedQ, Mask::Causal, 50, kBf16, kTermsDims, kPaged},
    {1, 32, 8, 1, 32768, kPackedQ, Mask::Causal, 50, kBf16, kTermsDims, kPaged},
    // pages of one token, which Hopper's kernel gathers
    {256, 32, 8, 1, 1024, kPackedQ, Mask::Causal, 0, kBf16, kMostUsualDims, kPaged, false, 1},
    {16, 32, 8, 1, 1024, kPackedQ, Mask::Causal, 0, kBf16, kMostUsualDims, kPaged, false, 1},
    {4, 32, 8, 1, 4096, kPackedQ, Mask::Causal, 0, kBf16, kMostUsualDims, kPaged, false, 1},
    {1, 32, 8, 1, 4096, kPackedQ, Mask::Causal, 0, kBf16, kMostUsualDims, kPaged, false, 1},
    // the same of dense batches, whose lengths are equal
    {128, 32, 8, 1, 8192, kDenseQ, Mask::None, 0, kBothTypes, kTermsDims, kDense},
    {1, 32, 8, 1, 131072, kDenseQ, Mask::None, 0, kBothTypes, kUsualDims, kDense},
    // decode with as many key heads as query heads
    {256, 32, 32, 1, 1024, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kBothLayouts},
    {1, 32, 32, 1, 32768, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kBothLayouts},
    // a few new tokens each: speculation, short prompts
    {256, 32, 8, 4, 1024, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kBothLayouts},
    {16, 32, 8, 4, 1024, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kBothLayouts},
    {4, 32, 8, 4, 4096, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kBothLayouts},
    {1, 32, 8, 4, 4096, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kBothLayouts},
    {256, 32, 2, 16, 1024, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kPaged},
    {1, 32, 2, 16, 32768, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kPaged},
    // gradients, of padded batches too; masks change nothing, score terms do
    {16, 32, 32, 4096, 4096, kPackedQ, Mask::Causal, 0, kBothTypes, kUsualDims, kDense, true},
};

DeviceInfo invent(const Target& target) {
  DeviceInfo device;
  device.name = "common";
  device.kind = DeviceInfo::Kind::Cuda;
  device.compute_capability = target.compute_capability;
  device.num_processors = 128;
  device.shared_bytes_per_block = target.shared_kib * 1024;
  device.memory_bytes_per_second = 4e12;
  return device;
}

/// [batch, rows, num_heads, head_dim] in order; rows = 0 for packed rows.
TensorStrides contiguous(std::int64_t rows, std::int64_t num_heads, std::int64_t head_dim) {
  return {.batch = rows * num_heads * head_dim, .row = num_heads * head_dim, .head = head_dim, .dim = 1};
}

AttentionProblem invent(const Work& work, DType dtype, const HeadDims& dims, SequenceLayout k_layout) {
  AttentionProblem p;
  p.q_dtype = p.kv_dtype = p.bias_dtype = dtype;
  p.batch = work.batch;
  p.num_heads_q = work.num_heads_q;
  p.num_heads_k = work.num_heads_k;
  p.head_dim = dims.qk;
  p.head_dim_v = dims.v;
  p.seqlen_q = work.seqlen_q;
  p.seqlen_k = work.seqlen_k;
  p.q_layout = work.q_layout;
  p.total_q = work.batch * work.seqlen_q;
  p.total_k = work.batch * work.seqlen_k;
  p.k_layout = k_layout;
  if (k_layout == SequenceLayout::Paged) {
    p.page_size = work.page_size;
    p.max_pages_per_sequence = work.seqlen_k / p.page_size;
    p.num_pages = work.batch * p.max_pages_per_sequence;
  }
  p.softcap = work.softcap;
  if (work.mask == Mask::Causal) p.causal = Causal::BottomRight;
  if (work.mask == Mask::Window) p.window_left = p.window_right = work.seqlen_k / 8;
  p.softmax_scale = 1 / std::sqrt(static_cast<double>(dims.qk));
  p.has_lse = true;
  const std::int64_t k_rows = k_layout == SequenceLayout::Paged ? p.page_size : p.seqlen_k;
  const std::int64_t q_rows = work.q_layout == SequenceLayout::Packed ? 0 : p.seqlen_q;
  p.q = contiguous(q_rows, work.num_heads_q, dims.qk);
  p.k = contiguous(k_rows, work.num_heads_k, dims.qk);
  p.v = contiguous(k_rows, work.num_heads_k, dims.v);
  p.out = contiguous(q_rows, work.num_heads_q, dims.v);
  if (work.backward) p.gradient = {.dout = p.out, .dq = p.q, .dk = p.k, .dv = p.v};
  return p;
}

class Collection {
 public:
  void add(const AttentionProblem& problem, const Target& target) {
    const Plan plan = make_plan_of_one_launch("kernels", problem, {.backend = Backend::Cuda}, invent(target));
    for (const PlanStep& step : plan.steps) add(step.gpu_kernel->spec, target);
  }
  void add(const KernelSpec& spec, const Target& target) {
    CommonKernel kernel{spec, target.kind};
    if (target.kind == ImageKind::Ptx) kernel.spec.architecture = kPtxArchitecture;
    if (seen_.emplace(kernel_name(kernel.spec), kernel.kind).second) kernels_.push_back(kernel);
  }
  std::vector<CommonKernel> take() { return std::move(kernels_); }

 private:
  std::set<std::pair<std::string, ImageKind>> seen_;
  std::vector<CommonKernel> kernels_;
};

}  // namespace

std::vector<CommonKernel> common_kernels() {
  Collection found;
  for (const Target& target : kTargets) {
    found.add(merge_states_kernel(target.compute_capability), target);
    found.add(part_lengths_kernel(target.compute_capability), target);
    for (const DType dtype : kBothTypes) {
      found.add(append_kv_kernel(target.compute_capability, dtype, dtype, 16), target);
    }
    for (const Work& work : kWork) {
      for (const DType dtype : work.dtypes) {
        for (const HeadDims& dims : work.head_dims) {
          if (dtype == DType::F16 && !comes_in_f16(dims)) continue;
          for (const SequenceLayout k_layout : work.layouts) {
            found.add(invent(work, dtype, dims, k_layout), target);
          }
        }
      }
    }
  }
  return found.take();
}

}  // namespace onepass
