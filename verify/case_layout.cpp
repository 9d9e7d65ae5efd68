#include "verify/case_layout.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <utility>

#include "verify/random.h"

namespace onepass::verify {
namespace {

/// How a view lies in its buffer.
struct Placement {
  std::array<int, 4> order{0, 1, 2, 3};  // dimensions, outermost first
  std::int64_t inner_stride = 1;         // of the innermost
  int reversed = -1;                     // a dimension that runs backwards
  int broadcast = -1;                    // a dimension with stride 0
};

/// Any length up to seqlen; 0, 1 and seqlen more often than others.
std::int64_t ragged_length(Random& random, std::int64_t seqlen) {
  switch (random.below(8)) {
    case 0: return 0;
    case 1: return std::min<std::int64_t>(1, seqlen);
    case 2: return seqlen;
    default: return random.below(seqlen + 1);
  }
}

Side make_side(const Case& c, Stream lengths, Stream gaps, std::int64_t seqlen, bool packed) {
  Side s;
  Random random_length{c.seed, static_cast<std::int64_t>(lengths)};
  Random random_gap{c.seed, static_cast<std::int64_t>(gaps)};
  const auto gap = [&] { return packed && c.gaps ? random_gap.below(4) : 0; };
  s.end = gap();
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const std::int64_t used = c.ragged ? ragged_length(random_length, seqlen) : seqlen;
    const std::int64_t room = used + gap();
    s.start.push_back(s.end);
    s.used.push_back(used);
    s.longest = std::max(s.longest, room);
    s.end += room;
  }
  s.rows = s.end + gap();
  return s;
}

class Layouter {
 public:
  explicit Layouter(const Case& c) : c_(c) {}

  CaseLayout lay_out() {
    l_.q = make_side(c_, Stream::LengthsQ, Stream::GapsQ, c_.seqlen_q, c_.packed_q);
    l_.k = make_side(c_, Stream::LengthsK, Stream::GapsK, c_.seqlen_k, c_.packed_k);
    if (paged()) {
      l_.num_pages = 2;
      for (const std::int64_t used : l_.k.used) l_.num_pages += pages_of(used, c_.page_size);
    }
    inputs();
    outputs();
    index_tensors();
    score_terms();
    return std::move(l_);
  }

 private:
  using View = TensorView ForwardArguments::*;

  bool paged() const { return c_.page_size > 0; }

  std::vector<std::int64_t> q_shape(std::int64_t dim) const {
    if (c_.packed_q) return {l_.q.rows, c_.num_heads_q, dim};
    return {c_.batch, c_.seqlen_q, c_.num_heads_q, dim};
  }

  std::vector<std::int64_t> kv_shape(std::int64_t dim) const {
    if (paged()) return {l_.num_pages, c_.page_size, c_.num_heads_k, dim};
    if (c_.packed_k) return {l_.k.rows, c_.num_heads_k, dim};
    return {c_.batch, c_.seqlen_k, c_.num_heads_k, dim};
  }

  void inputs() {
    if (c_.order == MemoryOrder::QkvPacked) return qkv_packed();
    place("q", &ForwardArguments::q, c_.dtype, q_shape(c_.head_dim), placement(c_.packed_q, false));
    place("k", &ForwardArguments::k, c_.kv_dtype, kv_shape(c_.head_dim), placement(c_.packed_k, true));
    place("v", &ForwardArguments::v, c_.kv_dtype, kv_shape(c_.head_dim_v), placement(c_.packed_k, true));
  }

  /// Memory order of a [B, S, H, D], [T, H, D] or [pages, slots, H, D] tensor.
  Placement placement(bool packed, bool is_key) const {
    Placement p;
    const int row = packed ? 0 : 1;
    switch (c_.order) {
      case MemoryOrder::RowMajor:
      case MemoryOrder::QkvPacked: break;
      case MemoryOrder::Bhsd: p.order = packed ? std::array{1, 0, 2, 3} : std::array{0, 2, 1, 3}; break;
      case MemoryOrder::DimStride2: p.inner_stride = 2; break;
      case MemoryOrder::BroadcastK: p.broadcast = is_key ? row + 1 : -1; break;
      case MemoryOrder::BroadcastB: p.broadcast = is_key ? 0 : -1; break;
      case MemoryOrder::Reversed: p.reversed = row; break;
    }
    return p;
  }

  /// Rows of one buffer hold all heads of q, then of k, then of v. When the three cannot share rows, K and V
  /// share a buffer: the two halves of each page ([pages, 2, slots, H, D] if D = Dv), or of each row.
  void qkv_packed() {
    const std::int64_t width_q = c_.num_heads_q * c_.head_dim;
    const std::int64_t width_k = c_.num_heads_k * c_.head_dim, width_v = c_.num_heads_k * c_.head_dim_v;
    const bool q_apart = paged() || c_.kv_dtype != c_.dtype || c_.packed_q != c_.packed_k;
    if (q_apart) place("q", &ForwardArguments::q, c_.dtype, q_shape(c_.head_dim), {});
    if (paged()) {
      const std::int64_t page = c_.page_size * (width_k + width_v);
      const std::size_t kv = add_buffer("kv", c_.kv_dtype, l_.num_pages * page);
      const auto half = [&](std::int64_t dim) {
        return make_view(nullptr, c_.kv_dtype, kv_shape(dim),
                         std::array{page, c_.num_heads_k * dim, dim, std::int64_t{1}});
      };
      add_slice(&ForwardArguments::k, half(c_.head_dim), kv, 0);
      add_slice(&ForwardArguments::v, half(c_.head_dim_v), kv, c_.page_size * width_k);
      return;
    }
    const std::int64_t width = (q_apart ? 0 : width_q) + width_k + width_v;
    const std::int64_t seqlen = q_apart ? c_.seqlen_k : std::max(c_.seqlen_q, c_.seqlen_k);
    const std::int64_t rows = !c_.packed_k ? c_.batch * seqlen
                              : q_apart    ? l_.k.rows
                                           : std::max(l_.q.rows, l_.k.rows);
    const std::size_t buffer = add_buffer(q_apart ? "kv" : "qkv", c_.kv_dtype, rows * width);
    const auto slice = [&](const std::vector<std::int64_t>& shape) {
      const std::int64_t dim = shape.back();
      if (shape.size() == 3)
        return make_view(nullptr, c_.kv_dtype, shape, std::array{width, dim, std::int64_t{1}});
      return make_view(nullptr, c_.kv_dtype, shape, std::array{seqlen * width, width, dim, std::int64_t{1}});
    };
    const std::int64_t begin_k = q_apart ? 0 : width_q;
    if (!q_apart) add_slice(&ForwardArguments::q, slice(q_shape(c_.head_dim)), buffer, 0);
    add_slice(&ForwardArguments::k, slice(kv_shape(c_.head_dim)), buffer, begin_k);
    add_slice(&ForwardArguments::v, slice(kv_shape(c_.head_dim_v)), buffer, begin_k + width_k);
  }

  void outputs() {
    place("out", &ForwardArguments::out, c_.dtype, q_shape(c_.head_dim_v), placement(c_.packed_q, false),
          true);
    if (!c_.has_lse) return;
    Placement p;
    const int row = c_.packed_q ? 1 : 2;
    if (c_.order == MemoryOrder::Bhsd)
      p.order = c_.packed_q ? std::array{1, 0, 2, 3} : std::array{0, 2, 1, 3};
    if (c_.order == MemoryOrder::DimStride2) p.inner_stride = 2;
    if (c_.order == MemoryOrder::Reversed) p.reversed = row;
    const std::vector<std::int64_t> shape = c_.packed_q ? std::vector{c_.num_heads_q, l_.q.rows}
                                                        : std::vector{c_.batch, c_.num_heads_q, c_.seqlen_q};
    place("softmax_lse", &ForwardArguments::softmax_lse, DType::F32, shape, p, true);
  }

  void index_tensors() {
    if (c_.packed_q) plain("cu_seqlens_q", &ForwardArguments::cu_seqlens_q, DType::I32, {c_.batch + 1});
    if (c_.packed_k) plain("cu_seqlens_k", &ForwardArguments::cu_seqlens_k, DType::I32, {c_.batch + 1});
    if (c_.packed_q ? c_.gaps : c_.ragged)
      plain("seqused_q", &ForwardArguments::seqused_q, DType::I32, {c_.batch});
    if (paged() || (c_.packed_k ? c_.gaps : c_.ragged)) {
      plain("seqused_k", &ForwardArguments::seqused_k, DType::I32, {c_.batch});
    }
    if (paged()) {
      plain("block_table", &ForwardArguments::block_table, DType::I32,
            {c_.batch, pages_of(c_.seqlen_k, c_.page_size) + 2});
    }
  }

  void score_terms() {
    per_head("alibi_slopes", &ForwardArguments::alibi_slopes, c_.alibi, c_.num_heads_q);
    per_head("sinks", &ForwardArguments::sinks, c_.has_sinks ? PerHead::Heads : PerHead::None,
             c_.num_heads_q);
    per_head("k_descale", &ForwardArguments::k_descale, c_.descale, c_.num_heads_k);
    per_head("v_descale", &ForwardArguments::v_descale, c_.descale, c_.num_heads_k);
    if (!c_.has_bias) return;
    Placement p;
    if (c_.order == MemoryOrder::DimStride2) p.inner_stride = 2;
    if (c_.order == MemoryOrder::Reversed) p.reversed = 2;
    place("bias", &ForwardArguments::bias, c_.bias_dtype,
          std::array{c_.bias_per_batch ? c_.batch : 1, c_.bias_per_head ? c_.num_heads_q : 1,
                     std::max(c_.seqlen_q, l_.q.longest), std::max(c_.seqlen_k, l_.k.longest)},
          p);
  }

  void per_head(const char* name, View view, PerHead shape, std::int64_t heads) {
    switch (shape) {
      case PerHead::None: break;
      case PerHead::One: plain(name, view, DType::F32, {1}); break;
      case PerHead::Heads: plain(name, view, DType::F32, {heads}); break;
      case PerHead::BatchHeads: plain(name, view, DType::F32, {c_.batch, heads}); break;
      case PerHead::Pages: plain(name, view, DType::F32, {l_.num_pages, 1, 1}); break;
      case PerHead::PageHeads: plain(name, view, DType::F32, {l_.num_pages, 1, heads}); break;
    }
  }

  void plain(const char* name, View view, DType dtype, std::initializer_list<std::int64_t> shape) {
    place(name, view, dtype, std::span(shape.begin(), shape.size()), {});
  }

  /// A view of `shape` in a buffer of its own.
  void place(const char* name, View view, DType dtype, std::span<const std::int64_t> shape,
             const Placement& placement, bool is_output = false) {
    std::vector<std::int64_t> strides(shape.size(), 0);
    std::int64_t elements = placement.inner_stride, origin = 0;
    for (std::size_t n = shape.size(); n-- > 0;) {
      const auto dim = static_cast<std::size_t>(placement.order[n]);
      if (static_cast<int>(dim) == placement.broadcast) continue;
      strides[dim] = elements;
      elements *= shape[dim];
    }
    if (placement.reversed >= 0 && elements > 0) {
      const auto dim = static_cast<std::size_t>(placement.reversed);
      origin = (shape[dim] - 1) * strides[dim];
      strides[dim] = -strides[dim];
    }
    for (const std::int64_t extent : shape) elements = extent == 0 ? 0 : elements;
    add_slice(view, make_view(nullptr, dtype, shape, strides), add_buffer(name, dtype, elements, is_output),
              origin);
  }

  std::size_t add_buffer(const char* name, DType dtype, std::int64_t elements, bool is_output = false) {
    l_.buffers.push_back({name, dtype, elements, is_output});
    return l_.buffers.size() - 1;
  }

  void add_slice(View view, const TensorView& shape, std::size_t buffer_idx, std::int64_t origin) {
    l_.args.*view = shape;
    l_.slices.push_back({view, buffer_idx, origin});
  }

  const Case& c_;
  CaseLayout l_;
};

}  // namespace

CaseLayout lay_out(const Case& c) { return Layouter(c).lay_out(); }

}  // namespace onepass::verify
