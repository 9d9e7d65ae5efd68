// Which tensors the tensor memory accelerator can be told of.
#pragma once

#include <cstdint>

#include "problem/attention_problem.h"

namespace onepass {

/// A dimension of this extent and stride (elements of 16 bits) can be one of a tensor map: 16-byte steps
/// forward, below 2^40 bytes.
constexpr bool fits_tensor_map(std::int64_t extent, std::int64_t stride) {
  return extent <= 1 || (stride > 0 && stride % 8 == 0 && stride < (std::int64_t{1} << 39));
}

/// batch: sequences, or pages of a pool, whose rows are slots.
constexpr bool fits_tensor_map(std::int64_t batch, std::int64_t rows, std::int64_t heads,
                               const TensorStrides& strides) {
  return strides.dim == 1 && fits_tensor_map(batch, strides.batch) && fits_tensor_map(rows, strides.row) &&
         fits_tensor_map(heads, strides.head);
}

}  // namespace onepass
