// The functions of one instruction set, each defined in a file of its own and gathered by kernel_table.cpp.
// Included inside foreach_target, hence the guard that flips.
#if defined(ONEPASS_CPU_SIMD_TARGETS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SIMD_TARGETS_INL_H_
#undef ONEPASS_CPU_SIMD_TARGETS_INL_H_
#else
#define ONEPASS_CPU_SIMD_TARGETS_INL_H_
#endif

#include "backends/cpu/simd/kernels.h"
#include "hwy/highway.h"

namespace onepass::cpu {
namespace HWY_NAMESPACE {

void prefill_item(const ForwardContext& context, const WorkItem& item, const Scratch& scratch,
                  WorkCursor& cursor);                                                          // prefill.cpp
void decode_item(const ForwardContext& context, const WorkItem& item, const Scratch& scratch);  // decode.cpp
void merge_row(const ForwardContext& context, const Sequence& s, std::int64_t i,
               std::int64_t h);  // merge_row.cpp
// gradients.cpp
void gradient_item(const GradientContext& context, const GradientItem& item, const GradientScratch& scratch);
void bias_item(const GradientContext& context, const BiasItem& item, const GradientScratch& scratch);
float row_delta(const GradientContext& context, const Sequence& s, std::int64_t i, std::int64_t h,
                float* line);
// product.cpp
void product_f32(const float* a, std::int64_t row_stride, std::int64_t k_stride, std::int64_t rows,
                 std::int64_t num_k, const float* b, std::int64_t columns, float* c, const float* rescale);

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu

#endif  // ONEPASS_CPU_SIMD_TARGETS_INL_H_
