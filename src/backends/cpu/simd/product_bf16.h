// The matrix product under the prefill path on CPUs with AVX-512 BF16.
#pragma once

#include <cstdint>

namespace onepass::cpu {

/// As Product (kernels.h), on 32-bit elements that hold two bf16 terms each, with f32 sums.
void product_bf16(const float* a, std::int64_t row_stride, std::int64_t k_stride, std::int64_t rows,
                  std::int64_t num_k, const float* b, std::int64_t columns, float* c, const float* rescale);

/// This machine has the instructions, and this build the code.
bool has_product_bf16();

/// Whether to prefer it to converting bf16 to f32.
bool prefers_product_bf16();

}  // namespace onepass::cpu
