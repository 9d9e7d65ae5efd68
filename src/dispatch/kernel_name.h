// Names of kernels: written here only, read in plans, logs, profilers and tests.
#pragma once

#include <string>

#include "problem/attention_problem.h"

namespace onepass {

/// "<family>_<dtype>_d<D>_v<Dv>_m<tile_m>n<tile_n>" and a suffix for each feature in use, for example
/// "cpu_simd_forward_bf16_d128_v128_m64n128_causal".
std::string forward_kernel_name(const char* family, const AttentionProblem& problem, std::int64_t tile_m,
                                std::int64_t tile_n);

}  // namespace onepass
