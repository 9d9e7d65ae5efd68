// What this machine gives at most, measured: the yardstick of every timing.
#pragma once

#include <string>

#include "onepass/tensor_view.h"

namespace onepass::cli {

struct MachinePeaks {
  int num_threads = 1;
  double f32_flops_per_second = 0;  ///< multiply-adds in registers, the widest vectors, every thread
  double bf16_flops_per_second =
      0;                  ///< the best of vector and matrix units on bf16 with f32 sums; f32's without
  std::string f32_unit;   ///< "AVX3 multiply-add"
  std::string bf16_unit;  ///< "AMX tiles", "AVX-512 BF16", or f32_unit
  double read_bytes_per_second = 0;  ///< every thread summing a buffer far larger than the caches
  double buffer_bytes = 0;

  /// The peak for products of this type: f16 is computed in f32.
  double flops_per_second(DType dtype) const {
    return dtype == DType::BF16 ? bf16_flops_per_second : f32_flops_per_second;
  }
};

/// With `num_threads` threads, or one per core if that is fewer. Takes about a second. Reads are the best of
/// several rounds, which a busy machine still lowers.
MachinePeaks measure_peaks(int num_threads);

}  // namespace onepass::cli
