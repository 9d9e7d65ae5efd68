// Descale factors as kernels read them.
#pragma once

#include <cstddef>

#include "backends/cuda/kernels/params.h"
#include "onepass/tensor_view.h"
#include "problem/descale.h"

namespace onepass::cuda {

/// Of checked factors, absent or in any of their shapes.
inline ScaleParams scale_params(const TensorView& view) {
  if (!view.present()) return {};
  const auto last = static_cast<std::size_t>(view.rank - 1);
  const bool per_page = descale_per_page(view);
  return {static_cast<const float*>(view.data), view.rank == 2 ? view.strides[0] : 0,
          per_page ? view.strides[0] : 0, view.shape[last] == 1 ? 0 : view.strides[last]};
}

}  // namespace onepass::cuda
