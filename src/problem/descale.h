// The rule of descale factors, of attention and of appending alike.
#pragma once

#include <cstdint>

#include "problem/checker.h"

namespace onepass {

/// What factors may be indexed by.
struct DescaleExtents {
  std::int64_t batch, num_heads_k;
  bool paged;
  std::int64_t num_pages;  // of paged K and V
  DType stored;            // of K and V
};

/// `t` is f32 [1], [Hk], [B, Hk] or, of 8-bit pages, [pages, 1, Hk or 1].
void check_descale(const Checker& check, NamedView t, const DescaleExtents& extents);

/// Whether factors belong to pages.
inline bool descale_per_page(const TensorView& descale) { return descale.rank == 3; }

}  // namespace onepass
