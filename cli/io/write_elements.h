// The elements of a view, in row-major order.
#pragma once

#include "io/byte_sink.h"
#include "onepass/tensor_view.h"

namespace onepass::io {

void write_elements(ByteSink& sink, const TensorView& view);

}  // namespace onepass::io
