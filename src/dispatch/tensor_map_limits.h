// What the kernels that copy by tensor maps can be told of, and how they see K and V.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "onepass/plan.h"
#include "problem/attention_problem.h"

namespace onepass {

/// The most rows that these kernels count: they add two such numbers in 32 bits.
constexpr std::int64_t kMostMappedRows = (std::int64_t{1} << 30) - 1024;

/// What q and out, and k and v are to the tensor memory accelerator: sequences of rows, or pages of them.
struct RowExtents {
  std::int64_t batch, rows;
};
RowExtents query_rows(const AttentionProblem& problem);
RowExtents key_rows(const AttentionProblem& problem);

/// Rows of a page that are copied at once into a tile of keys: a divisor of both.
int page_box(std::int64_t page_size, int tile_n);

/// Why a device or the types of a problem are not for Hopper's kernels; empty when they are.
std::optional<std::string> decline_hopper(const AttentionProblem& problem, const DeviceInfo& device);

/// Why a problem's tensors are none for a tensor map, which has no empty dimension and steps of 16 bytes
/// forward; empty when they are.
std::optional<std::string> decline_tensor_maps(const AttentionProblem& problem);

/// Whether a tile of keys can be put together from boxes: of pages, whole groups of rows after which the
/// swizzle repeats.
bool fits_boxes(const AttentionProblem& problem);

/// The same of the gradient of out, which is read by one, and of those that are written in pieces of 16
/// bytes.
std::optional<std::string> decline_gradient_rows(const AttentionProblem& problem);

}  // namespace onepass
