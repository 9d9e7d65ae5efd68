#include "cli/tensor_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "support/float_types.h"
#include "support/message.h"

namespace onepass::cli {
namespace {

constexpr std::size_t kFirst = 4;

template <class Visit>
void for_each_element(const TensorView& view, Visit visit) {
  if (view.num_elements() == 0) return;
  std::array<std::int64_t, TensorView::kMaxRank> position{};
  std::int64_t offset = 0;
  for (;;) {
    visit(load_float(view.data, view.dtype, offset));
    auto dim = static_cast<std::size_t>(view.rank);
    for (;;) {  // counts like an odometer: the last dimension turns fastest
      if (dim == 0) return;
      --dim;
      offset += view.strides[dim];
      if (++position[dim] < view.shape[dim]) break;
      offset -= view.strides[dim] * view.shape[dim];
      position[dim] = 0;
    }
  }
}

}  // namespace

TensorSummary summarise(const TensorView& view) {
  TensorSummary s;
  s.shape = shape_string(view);
  s.dtype = view.dtype;
  s.num_elements = view.num_elements();
  std::int64_t num_finite = 0;
  double sum = 0;
  for_each_element(view, [&](float value) {
    if (s.first.size() < kFirst) s.first.push_back(without_nan_sign(value));
    if (std::isnan(value)) {
      ++s.num_nan;
    } else if (std::isinf(value)) {
      ++s.num_infinite;
    } else {
      s.min = num_finite == 0 ? value : std::min<double>(s.min, value);
      s.max = num_finite == 0 ? value : std::max<double>(s.max, value);
      sum += value;
      ++num_finite;
    }
  });
  if (num_finite > 0) s.mean = sum / static_cast<double>(num_finite);
  return s;
}

std::string to_text(const TensorSummary& s) {
  std::string text = fmt::format("{} {}: min {:.6g}, max {:.6g}, mean {:.6g}", dtype_name(s.dtype), s.shape,
                                 s.min, s.max, s.mean);
  if (s.num_infinite > 0) text += fmt::format(", {} infinite", s.num_infinite);
  if (s.num_nan > 0) text += fmt::format(", {} NaN", s.num_nan);
  if (!s.first.empty()) text += "; first";
  for (const float value : s.first) text += fmt::format(" {:.6g}", value);
  return text;
}

Json to_json(const TensorSummary& s) {
  Json first = Json::array();
  for (const float value : s.first) first.push_back(number_to_json(value));
  return {{"dtype", dtype_name(s.dtype)},
          {"shape", Json::parse(s.shape)},
          {"num_elements", s.num_elements},
          {"num_infinite", s.num_infinite},
          {"num_nan", s.num_nan},
          {"min", s.min},
          {"max", s.max},
          {"mean", s.mean},
          {"first", std::move(first)}};
}

}  // namespace onepass::cli
