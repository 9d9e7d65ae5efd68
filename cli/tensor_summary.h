// A few numbers that tell two tensors apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/json_output.h"
#include "onepass/tensor_view.h"

namespace onepass::cli {

struct TensorSummary {
  std::string shape;
  DType dtype = DType::F32;
  std::int64_t num_elements = 0;
  std::int64_t num_infinite = 0, num_nan = 0;
  double min = 0, max = 0, mean = 0;  // over finite elements; 0 when there are none
  std::vector<float> first;           // the first elements in row-major order, at most four
};

/// `view` in host memory, any dtype but I32, any strides.
TensorSummary summarise(const TensorView& view);

/// "f32 [1, 8, 64]: min -1.2, max 0.9, mean 0.01; first 0.1 0.2 0.3 0.4"
std::string to_text(const TensorSummary& summary);
Json to_json(const TensorSummary& summary);

}  // namespace onepass::cli
