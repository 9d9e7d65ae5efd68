// Random cases over the whole feature space, small enough to evaluate by the thousand.
#pragma once

#include <cstdint>
#include <span>

#include "problem/case_text.h"
#include "verify/random.h"

namespace onepass::verify {

struct HeadDims {
  std::int64_t head_dim, head_dim_v;
};

/// Lengths 0, 1 and around the tiles of every backend (64, 128, 256), any head dim up to 576 with small and
/// odd ones often, every mask, scale, extra term, layout and memory order. About max_work multiply-adds at
/// most. The case is valid: plan() accepts it. Head dims are one of `head_dims` when there are any.
Case random_case(Random& random, double max_work = 2e6, std::span<const HeadDims> head_dims = {});

}  // namespace onepass::verify
