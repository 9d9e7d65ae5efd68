#include "verify/random_case.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>

namespace onepass::verify {
namespace {

template <class T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.below(static_cast<std::int64_t>(choices.size()))];
}

std::int64_t random_length(Random& random) {
  switch (random.below(10)) {
    case 0: return one_of<std::int64_t>(random, {0, 1, 1, 2});
    case 1:
    case 2: return one_of<std::int64_t>(random, {63, 64, 65});
    case 3: return one_of<std::int64_t>(random, {127, 128, 129});
    case 4: return one_of<std::int64_t>(random, {255, 256, 257});
    case 5: return 1 + random.below(700);
    default: return 1 + random.below(48);
  }
}

std::int64_t random_head_dim(Random& random) {
  switch (random.below(8)) {
    case 0: return one_of<std::int64_t>(random, {64, 128, 96, 80, 192, 256});
    case 1: return 1 + random.below(576);
    case 2: return one_of<std::int64_t>(random, {1, 2, 3, 15, 17, 31, 33, 63, 65, 576});
    default: return 1 + random.below(40);
  }
}

/// Multiply-adds of one of the two products.
double work(const Case& c) {
  return static_cast<double>(c.batch * c.num_heads_q) * static_cast<double>(c.seqlen_q * c.seqlen_k) *
         static_cast<double>(std::max(c.head_dim, c.head_dim_v));
}

void shape(Random& random, Case& c, double max_work, std::span<const HeadDims> head_dims) {
  if (random.chance(25)) c.num_splits = 1 + random.below(5);
  c.seqlen_q = random.chance(25) ? 1 + random.below(8) : random_length(random);
  c.seqlen_k = random.chance(25) ? c.seqlen_q : random_length(random);
  if (c.num_splits > 1 && random.chance(60))
    c.seqlen_k = 200 + random.below(1200);  // several key blocks to share out
  c.head_dim = random_head_dim(random);
  c.head_dim_v = random.chance(70) ? c.head_dim : random_head_dim(random);
  if (!head_dims.empty()) {
    const HeadDims& dims = head_dims[static_cast<std::size_t>(random.below(std::ssize(head_dims)))];
    c.head_dim = dims.head_dim;
    c.head_dim_v = dims.head_dim_v;
  }
  c.batch = random.chance(3) ? 0 : 1 + random.below(4);
  c.num_heads_k = 1 + random.below(3);
  c.num_heads_q = c.num_heads_k * one_of<std::int64_t>(random, {1, 1, 1, 2, 3, 4, 7, 8, 16});
  // Too much work: first fewer heads and sequences, then shorter head dims, lengths last.
  while (work(c) > max_work) {
    if (c.num_heads_q > c.num_heads_k * 2) {
      c.num_heads_q = c.num_heads_k * (c.num_heads_q / c.num_heads_k / 2);
    } else if (c.num_heads_k > 1) {
      c.num_heads_k = c.num_heads_q = 1;
    } else if (c.batch > 2) {
      c.batch = 2;
    } else if (c.num_splits > 1 && c.seqlen_q > 8) {
      c.seqlen_q /= 2;
    } else if (head_dims.empty() && std::max(c.head_dim, c.head_dim_v) > 32) {
      c.head_dim = 1 + c.head_dim / 2;
      c.head_dim_v = 1 + c.head_dim_v / 2;
    } else {
      (c.seqlen_q > c.seqlen_k ? c.seqlen_q : c.seqlen_k) /= 2;
    }
  }
}

void mask(Random& random, Case& c) {
  c.causal =
      one_of(random, {Causal::None, Causal::None, Causal::BottomRight, Causal::BottomRight, Causal::TopLeft});
  const auto window = [&] {
    if (random.chance(65)) return std::int64_t{-1};
    return random.chance(30) ? one_of<std::int64_t>(random, {0, 1, 63, 64, 127, 128, 300})
                             : random.below(100);
  };
  c.window_left = window();
  c.window_right = window();
}

/// Scores stay within a few hundred: past that, f32 itself keeps fewer digits than the bound asks for.
void scores(Random& random, Case& c) {
  const double usual = 1 / std::sqrt(static_cast<double>(c.head_dim));
  switch (random.below(8)) {
    case 0: c.softmax_scale = 0.0; break;
    case 1: c.softmax_scale = -usual; break;
    case 2: c.softmax_scale = usual * (random.uniform() * 4 - 2); break;
    default: break;
  }
  if (random.chance(20)) c.softcap = one_of(random, {0.5, 2.0, 20.0, 50.0});
  if (random.chance(20)) c.alibi = one_of(random, {PerHead::Heads, PerHead::BatchHeads});
  if (random.chance(20)) {
    c.has_bias = true;
    c.bias_per_batch = random.chance(50);
    c.bias_per_head = random.chance(50);
    c.bias_has_inf = random.chance(30);
    c.bias_dtype = random.chance(30) ? DType::F32 : c.dtype;
  }
  c.has_sinks = random.chance(20);
}

void layout(Random& random, Case& c) {
  c.packed_q = random.chance(35);
  switch (random.below(4)) {
    case 0: c.packed_k = true; break;
    case 1: c.page_size = one_of<std::int64_t>(random, {1, 2, 3, 5, 8, 16, 32, 64, 100, 128, 256}); break;
    default: break;
  }
  c.ragged = random.chance(50);
  c.gaps = (c.packed_q || c.packed_k) && random.chance(40);
  c.gives_max_seqlen = random.chance(40);
  c.order = one_of(random, {MemoryOrder::RowMajor, MemoryOrder::RowMajor, MemoryOrder::Bhsd,
                            MemoryOrder::QkvPacked, MemoryOrder::DimStride2, MemoryOrder::BroadcastK,
                            MemoryOrder::BroadcastB, MemoryOrder::Reversed});
  if (c.order == MemoryOrder::BroadcastB && (c.packed_k || c.page_size > 0)) c.order = MemoryOrder::RowMajor;
}

}  // namespace

Case random_case(Random& random, double max_work, std::span<const HeadDims> head_dims) {
  Case c;
  c.seed = random.below(1'000'000'000);
  c.dtype = c.kv_dtype = one_of(random, {DType::F32, DType::F16, DType::BF16});
  shape(random, c, max_work, head_dims);
  mask(random, c);
  scores(random, c);
  layout(random, c);
  if (random.chance(15)) c.kv_dtype = one_of(random, {DType::F8E4M3, DType::F8E5M2, DType::I8});
  if (random.chance(c.kv_dtype == c.dtype ? 5 : 70)) {
    c.descale = one_of(random, {PerHead::One, PerHead::Heads, PerHead::BatchHeads});
    if (c.page_size > 0 && c.kv_dtype != c.dtype && random.chance(40)) {
      c.descale = one_of(random, {PerHead::Pages, PerHead::PageHeads});
    }
  }
  c.has_lse = !random.chance(15);
  c.batch_invariant = c.num_splits == 0 && random.chance(15);
  // A relative bound means little for a few outputs that cancel to nearly 0; values away from 0 do not.
  c.mean_v = c.batch * c.num_heads_q * c.seqlen_q * c.head_dim_v < 256 ? 4.0 : 0.5;
  return c;
}

}  // namespace onepass::verify
