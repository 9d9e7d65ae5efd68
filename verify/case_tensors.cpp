#include "verify/case_tensors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "support/float_types.h"
#include "support/message.h"
#include "verify/oracle.h"
#include "verify/random.h"

namespace onepass::verify {
namespace {

/// Random streams; part of every key.
enum Stream : std::int64_t {
  kLengthsQ,
  kLengthsK,
  kGapsQ,
  kGapsK,
  kPages,
  kQ,
  kK,
  kV,
  kBias,
  kSlopes,
  kSinks,
  kDescaleK,
  kDescaleV,
};

constexpr std::int64_t kParallelElements = 1 << 16;  // below, starting threads costs more than filling

/// How a view lies in its buffer.
struct Placement {
  std::array<int, 4> order{0, 1, 2, 3};  // dimensions, outermost first
  std::int64_t inner_stride = 1;         // of the innermost
  int reversed = -1;                     // a dimension that runs backwards
  int broadcast = -1;                    // a dimension with stride 0
};

/// Query rows of seqlen_q that see key j, and keys that row i sees, in closed form.
std::int64_t count_rows_seeing(const Mask& mask, std::int64_t j, std::int64_t seqlen_q,
                               std::int64_t seqlen_k) {
  const std::int64_t off = seqlen_k - seqlen_q;
  std::int64_t first = 0, last = seqlen_q - 1;
  if (mask.causal == Causal::BottomRight) first = std::max(first, j - off);
  if (mask.causal == Causal::TopLeft) first = std::max(first, j);
  if (mask.window_right >= 0) first = std::max(first, j - off - mask.window_right);
  if (mask.window_left >= 0) last = std::min(last, j - off + mask.window_left);
  return std::max<std::int64_t>(0, last - first + 1);
}

std::int64_t count_keys_seen(const Mask& mask, std::int64_t i, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  const std::int64_t position = i + seqlen_k - seqlen_q;
  std::int64_t first = 0, last = seqlen_k - 1;
  if (mask.causal == Causal::BottomRight) last = std::min(last, position);
  if (mask.causal == Causal::TopLeft) last = std::min(last, i);
  if (mask.window_right >= 0) last = std::min(last, position + mask.window_right);
  if (mask.window_left >= 0) first = std::max(first, position - mask.window_left);
  return std::max<std::int64_t>(0, last - first + 1);
}

std::array<float, 256> f8_values(DType dtype) {
  std::array<float, 256> values{};
  for (std::size_t bits = 0; bits < values.size(); ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    values[bits] = load_float(&byte, dtype, 0);
  }
  return values;
}

/// The nearest value of an 8-bit format; there are few enough to try them all.
std::uint8_t to_f8(DType dtype, float x) {
  static const std::array<float, 256> kE4M3 = f8_values(DType::F8E4M3), kE5M2 = f8_values(DType::F8E5M2);
  const auto& values = dtype == DType::F8E4M3 ? kE4M3 : kE5M2;
  std::size_t best = 0;
  float best_distance = std::numeric_limits<float>::infinity();
  for (std::size_t bits = 0; bits < values.size(); ++bits) {
    const float distance = std::abs(values[bits] - x);
    if (distance < best_distance) {  // false for NaN and infinity
      best = bits;
      best_distance = distance;
    }
  }
  return static_cast<std::uint8_t>(best);
}

void store(const TensorView& view, std::int64_t offset, float x) {
  if (dtype_bytes(view.dtype) == 1) {
    static_cast<std::uint8_t*>(view.data)[offset] = to_f8(view.dtype, x);
  } else {
    store_float(view.data, view.dtype, offset, x);
  }
}

std::size_t hash_of(const GuardedBuffer& memory) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(memory.bytes()), memory.size()});
}

/// The rows that one side (queries or keys) has in its buffer, sequence by sequence.
struct Side {
  std::vector<std::int64_t> start, used;  // per sequence; start only matters when packed
  std::int64_t longest = 0;               // rows that a sequence has room for
  std::int64_t end = 0;                   // of the last sequence in a packed buffer
  std::int64_t rows = 0;                  // of a packed buffer, which may have unused rows past the end
};

class Builder {
 public:
  Builder(const Case& c, bool allocate)
      : c_(c), allocate_(allocate), mask_{c.causal, c.window_left, c.window_right} {}

  CaseTensors build() {
    q_side_ = side(kLengthsQ, kGapsQ, c_.seqlen_q, c_.packed_q);
    k_side_ = side(kLengthsK, kGapsK, c_.seqlen_k, c_.packed_k);
    if (allocate_) check_memory();
    views();
    outputs();
    index_tensors();
    score_terms();
    options();
    if (allocate_) fill();
    return std::move(t_);
  }

 private:
  ForwardArguments& args() { return t_.args; }
  bool paged() const { return c_.page_size > 0; }

  Side side(Stream lengths, Stream gaps, std::int64_t seqlen, bool packed) const {
    Side s;
    Random random_length{c_.seed, lengths}, random_gap{c_.seed, gaps};
    const bool with_gaps = packed && c_.gaps;
    if (with_gaps) s.end = random_gap.below(4);
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const std::int64_t used = c_.ragged ? ragged_length(random_length, seqlen) : seqlen;
      s.start.push_back(s.end);
      s.used.push_back(used);
      const std::int64_t room = used + (with_gaps ? random_gap.below(4) : 0);
      s.longest = std::max(s.longest, room);
      s.end += room;
    }
    s.rows = s.end + (with_gaps ? random_gap.below(4) : 0);
    return s;
  }

  /// Any length up to seqlen; 0, 1 and seqlen more often than others.
  static std::int64_t ragged_length(Random& random, std::int64_t seqlen) {
    switch (random.below(8)) {
      case 0: return 0;
      case 1: return std::min<std::int64_t>(1, seqlen);
      case 2: return seqlen;
      default: return random.below(seqlen + 1);
    }
  }

  static std::int64_t pages_of(std::int64_t tokens, std::int64_t page_size) {
    return (tokens + page_size - 1) / page_size;
  }

  std::int64_t num_pages() const {
    std::int64_t pages = 2;  // that no sequence uses
    for (const std::int64_t used : k_side_.used) pages += pages_of(used, c_.page_size);
    return pages;
  }

  // --- memory --------------------------------------------------------------------------------------------

  void check_memory() const {
    const auto elements = [&](std::int64_t rows, std::int64_t heads) {
      return static_cast<double>(rows * heads * (c_.head_dim + c_.head_dim_v));
    };
    const double stretch = c_.order == MemoryOrder::DimStride2 ? 2 : 1;
    double bytes = stretch * static_cast<double>(dtype_bytes(c_.dtype)) *
                   elements(std::max(c_.batch * c_.seqlen_q, q_side_.rows), c_.num_heads_q);
    bytes += stretch * static_cast<double>(dtype_bytes(c_.kv_dtype)) *
             elements(paged() ? num_pages() * c_.page_size : std::max(c_.batch * c_.seqlen_k, k_side_.rows),
                      c_.num_heads_k);
    if (c_.has_bias) {
      bytes +=
          stretch * static_cast<double>(dtype_bytes(c_.bias_dtype) * (c_.bias_per_batch ? c_.batch : 1) *
                                        (c_.bias_per_head ? c_.num_heads_q : 1) * c_.seqlen_q * c_.seqlen_k);
    }
    const double physical =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    if (bytes <= physical) return;
    throw EnvironmentError(format_message(
        "case", fmt::format("'{}' needs {:.3g} GB for its tensors", to_string(c_), bytes * 1e-9),
        fmt::format("at most the {:.3g} GB of this machine", physical * 1e-9), "make the case smaller"));
  }

  /// A view of `shape` in a buffer of its own.
  TensorView place(const char* name, DType dtype, std::span<const std::int64_t> shape, Placement placement) {
    const auto rank = shape.size();
    std::vector<std::int64_t> strides(rank, 0);
    std::int64_t elements = placement.inner_stride, origin = 0;
    for (std::size_t n = rank; n-- > 0;) {
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
    for (const std::int64_t extent : shape) elements *= extent == 0 ? 0 : 1;
    return finish(name, make_view(nullptr, dtype, shape, strides), elements, origin);
  }

  TensorView finish(const char* name, TensorView view, std::int64_t elements, std::int64_t origin) {
    if (!allocate_) return view;
    const auto bytes = static_cast<std::size_t>(dtype_bytes(view.dtype));
    t_.buffers.push_back({name,
                          std::make_unique<GuardedBuffer>(static_cast<std::size_t>(elements) * bytes,
                                                          c_.seed % 2 == 0 ? 0 : bytes),
                          {},
                          0});
    if (!c_.poison) t_.buffers.back().memory->fill(0);
    view.data =
        static_cast<char*>(t_.buffers.back().memory->data()) + origin * static_cast<std::int64_t>(bytes);
    return view;
  }

  TensorView plain(const char* name, DType dtype, std::initializer_list<std::int64_t> shape) {
    return place(name, dtype, std::span(shape.begin(), shape.size()), {});
  }

  /// Memory order of a [B, S, H, D], [T, H, D] or [pages, slots, H, D] tensor.
  Placement placement(bool packed, bool is_key) const {
    Placement p;
    const int row = packed ? 0 : 1;
    switch (c_.order) {
      case MemoryOrder::RowMajor:
      case MemoryOrder::QkvPacked: break;
      case MemoryOrder::Bhsd:
        p.order = packed ? std::array<int, 4>{1, 0, 2, 3} : std::array<int, 4>{0, 2, 1, 3};
        break;
      case MemoryOrder::DimStride2: p.inner_stride = 2; break;
      case MemoryOrder::BroadcastK:
        if (is_key) p.broadcast = row + 1;
        break;
      case MemoryOrder::BroadcastB:
        if (is_key) p.broadcast = 0;
        break;
      case MemoryOrder::Reversed: p.reversed = row; break;
    }
    return p;
  }

  // --- views ---------------------------------------------------------------------------------------------

  std::vector<std::int64_t> q_shape(std::int64_t dim) const {
    if (c_.packed_q) return {q_side_.rows, c_.num_heads_q, dim};
    return {c_.batch, c_.seqlen_q, c_.num_heads_q, dim};
  }

  std::vector<std::int64_t> kv_shape(std::int64_t dim) const {
    if (paged()) return {num_pages(), c_.page_size, c_.num_heads_k, dim};
    if (c_.packed_k) return {k_side_.rows, c_.num_heads_k, dim};
    return {c_.batch, c_.seqlen_k, c_.num_heads_k, dim};
  }

  void views() {
    if (c_.order == MemoryOrder::QkvPacked) {
      qkv_packed();
      return;
    }
    args().q = place("q", c_.dtype, q_shape(c_.head_dim), placement(c_.packed_q, false));
    args().k = place("k", c_.kv_dtype, kv_shape(c_.head_dim), placement(c_.packed_k, true));
    args().v = place("v", c_.kv_dtype, kv_shape(c_.head_dim_v), placement(c_.packed_k, true));
  }

  /// Rows of one buffer hold all heads of q, then of k, then of v. When the three cannot share rows, K and V
  /// share a
  /// buffer: the two halves of each page ([pages, 2, slots, H, D] if D = Dv), or of each row.
  void qkv_packed() {
    const std::int64_t width_q = c_.num_heads_q * c_.head_dim;
    const std::int64_t width_k = c_.num_heads_k * c_.head_dim, width_v = c_.num_heads_k * c_.head_dim_v;
    if (paged()) {
      args().q = place("q", c_.dtype, q_shape(c_.head_dim), {});
      const std::int64_t page = c_.page_size * (width_k + width_v);
      const auto half = [&](std::int64_t dim) {
        return make_view(nullptr, c_.kv_dtype, kv_shape(dim),
                         std::array{page, c_.num_heads_k * dim, dim, std::int64_t{1}});
      };
      share("kv",
            {{&args().k, half(c_.head_dim), 0}, {&args().v, half(c_.head_dim_v), c_.page_size * width_k}},
            num_pages() * page);
      return;
    }
    const bool q_apart = c_.kv_dtype != c_.dtype || c_.packed_q != c_.packed_k;
    const std::int64_t width = width_k + width_v + (q_apart ? 0 : width_q);
    const std::int64_t seqlen = q_apart ? c_.seqlen_k : std::max(c_.seqlen_q, c_.seqlen_k);
    const std::int64_t rows = !c_.packed_k ? c_.batch * seqlen
                              : q_apart    ? k_side_.rows
                                           : std::max(q_side_.rows, k_side_.rows);
    const auto slice = [&](DType dtype, const std::vector<std::int64_t>& shape) {
      const std::int64_t dim = shape.back();
      if (shape.size() == 3) return make_view(nullptr, dtype, shape, std::array{width, dim, std::int64_t{1}});
      return make_view(nullptr, dtype, shape, std::array{seqlen * width, width, dim, std::int64_t{1}});
    };
    const TensorView k = slice(c_.kv_dtype, kv_shape(c_.head_dim)),
                     v = slice(c_.kv_dtype, kv_shape(c_.head_dim_v));
    if (q_apart) {
      args().q = place("q", c_.dtype, q_shape(c_.head_dim), {});
      share("kv", {{&args().k, k, 0}, {&args().v, v, width_k}}, rows * width);
    } else {
      share("qkv",
            {{&args().q, slice(c_.dtype, q_shape(c_.head_dim)), 0},
             {&args().k, k, width_q},
             {&args().v, v, width_q + width_k}},
            rows * width);
    }
  }

  struct Slice {
    TensorView* target;
    TensorView view;
    std::int64_t origin;
  };

  void share(const char* name, std::initializer_list<Slice> slices, std::int64_t elements) {
    const TensorView whole = plain(name, slices.begin()->view.dtype, {elements});
    for (const Slice& s : slices) {
      *s.target = s.view;
      if (allocate_) s.target->data = static_cast<char*>(whole.data) + s.origin * dtype_bytes(s.view.dtype);
    }
  }

  void outputs() {
    args().out = place("out", c_.dtype, q_shape(c_.head_dim_v), placement(c_.packed_q, false));
    mark_output(args().out);
    if (!c_.has_lse) return;
    Placement p;
    const int row = c_.packed_q ? 1 : 2;
    if (c_.order == MemoryOrder::Bhsd)
      p.order = c_.packed_q ? std::array{1, 0, 2, 3} : std::array{0, 2, 1, 3};
    if (c_.order == MemoryOrder::DimStride2) p.inner_stride = 2;
    if (c_.order == MemoryOrder::Reversed) p.reversed = row;
    args().softmax_lse =
        c_.packed_q ? place("softmax_lse", DType::F32, std::array{c_.num_heads_q, q_side_.rows}, p)
                    : place("softmax_lse", DType::F32, std::array{c_.batch, c_.num_heads_q, c_.seqlen_q}, p);
    mark_output(args().softmax_lse);
  }

  void mark_output(const TensorView& view) {
    if (!allocate_) return;
    t_.buffers.back().output = view;
    t_.buffers.back().memory->fill(kPoison);
  }

  void index_tensors() {
    if (c_.packed_q) args().cu_seqlens_q = prefix_sums("cu_seqlens_q", q_side_);
    if (c_.packed_k) args().cu_seqlens_k = prefix_sums("cu_seqlens_k", k_side_);
    if (c_.packed_q ? c_.gaps : c_.ragged) args().seqused_q = indices("seqused_q", q_side_.used);
    if (paged() || (c_.packed_k ? c_.gaps : c_.ragged)) args().seqused_k = indices("seqused_k", k_side_.used);
    if (paged()) block_table();
  }

  TensorView indices(const char* name, const std::vector<std::int64_t>& values) {
    const TensorView view = plain(name, DType::I32, {static_cast<std::int64_t>(values.size())});
    if (allocate_) std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(view.data));
    return view;
  }

  TensorView prefix_sums(const char* name, const Side& s) {
    std::vector<std::int64_t> offsets = s.start;
    offsets.push_back(s.end);
    return indices(name, offsets);
  }

  /// Pages in random order; past the end of a sequence, numbers that lead out of the pool.
  void block_table() {
    const std::int64_t columns = pages_of(c_.seqlen_k, c_.page_size) + 2;
    args().block_table = plain("block_table", DType::I32, {c_.batch, columns});
    if (!allocate_) return;
    std::vector<std::int32_t> pages(static_cast<std::size_t>(num_pages()));
    std::iota(pages.begin(), pages.end(), 0);
    Random random{c_.seed, kPages};
    for (std::size_t n = pages.size(); n > 1; --n) {
      std::swap(pages[n - 1], pages[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(n)))]);
    }
    constexpr std::int32_t kGarbage[] = {-1, std::numeric_limits<std::int32_t>::max(), 1 << 30,
                                         std::numeric_limits<std::int32_t>::min()};
    auto* table = static_cast<std::int32_t*>(args().block_table.data);
    std::size_t next = 0;
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const std::int64_t used = pages_of(k_side_.used[static_cast<std::size_t>(b)], c_.page_size);
      for (std::int64_t column = 0; column < columns; ++column) {
        table[b * columns + column] = column < used ? pages[next++] : kGarbage[random.below(4)];
      }
    }
  }

  void score_terms() {
    if (c_.alibi != PerHead::None) {
      args().alibi_slopes = per_head("alibi_slopes", c_.alibi, c_.num_heads_q);
      fill_random(args().alibi_slopes, kSlopes,
                  [](Random& r) { return static_cast<float>(0.5 * r.uniform()); });
    }
    if (c_.has_sinks) {
      args().sinks = per_head("sinks", PerHead::Heads, c_.num_heads_q);
      fill_random(args().sinks, kSinks, [](Random& r) { return 2.0f * r.normal(); });
    }
    if (c_.descale != PerHead::None) {
      const auto factor = [](Random& r) { return static_cast<float>(0.25 + r.uniform()); };
      args().k_descale = per_head("k_descale", c_.descale, c_.num_heads_k);
      fill_random(args().k_descale, kDescaleK, factor);
      args().v_descale = per_head("v_descale", c_.descale, c_.num_heads_k);
      fill_random(args().v_descale, kDescaleV, factor);
    }
    if (c_.has_bias) {
      Placement p;
      if (c_.order == MemoryOrder::DimStride2) p.inner_stride = 2;
      if (c_.order == MemoryOrder::Reversed) p.reversed = 2;
      args().bias =
          place("bias", c_.bias_dtype,
                std::array{c_.bias_per_batch ? c_.batch : 1, c_.bias_per_head ? c_.num_heads_q : 1,
                           std::max(c_.seqlen_q, q_side_.longest), std::max(c_.seqlen_k, k_side_.longest)},
                p);
    }
  }

  TensorView per_head(const char* name, PerHead shape, std::int64_t heads) {
    switch (shape) {
      case PerHead::One: return plain(name, DType::F32, {1});
      case PerHead::Heads: return plain(name, DType::F32, {heads});
      default: return plain(name, DType::F32, {c_.batch, heads});
    }
  }

  template <class Draw>
  void fill_random(const TensorView& view, Stream stream, Draw draw) const {
    if (!allocate_) return;
    Random random{c_.seed, stream};
    for (std::int64_t n = 0; n < view.num_elements(); ++n) static_cast<float*>(view.data)[n] = draw(random);
  }

  void options() {
    ForwardOptions& o = t_.options;
    o.causal = c_.causal;
    o.window_left = c_.window_left;
    o.window_right = c_.window_right;
    o.softmax_scale = c_.softmax_scale;
    o.softcap = c_.softcap;
    o.num_splits = static_cast<int>(c_.num_splits);
    if (c_.gives_max_seqlen || !allocate_) {
      o.max_seqlen_q = c_.seqlen_q;
      o.max_seqlen_k = c_.seqlen_k;
    }
  }

  // --- values --------------------------------------------------------------------------------------------

  void fill() {
    fill_queries();
    fill_keys(args().k, kK, c_.mean);
    fill_keys(args().v, kV, c_.mean_v);
    if (c_.has_bias) fill_bias();
    for (CaseTensors::Buffer& buffer : t_.buffers) {
      if (!buffer.output.present()) buffer.input_hash = hash_of(*buffer.memory);
    }
  }

  void fill_row(const TensorView& view, std::int64_t offset, std::int64_t dim_stride, std::int64_t dims,
                Random random, double mean) const {
    for (std::int64_t d = 0; d < dims; ++d) {
      store(view, offset + d * dim_stride, static_cast<float>(mean) + random.normal());
    }
  }

  void fill_queries() {
    const TensorView& q = args().q;
    const auto row = static_cast<std::size_t>(c_.packed_q ? 0 : 1);
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const auto [start, seqlen_q, seqlen_k] = lengths(b);
#pragma omp parallel for schedule(static) if (seqlen_q * c_.num_heads_q * c_.head_dim > kParallelElements)
      for (std::int64_t i = 0; i < seqlen_q; ++i) {
        if (c_.poison && count_keys_seen(mask_, i, seqlen_q, seqlen_k) == 0) continue;
        for (std::int64_t h = 0; h < c_.num_heads_q; ++h) {
          const std::int64_t offset = (c_.packed_q ? start * q.strides[0] : b * q.strides[0]) +
                                      i * q.strides[row] + h * q.strides[row + 1];
          fill_row(q, offset, q.strides[row + 2], c_.head_dim, Random{c_.seed, kQ, b, h, i}, c_.mean);
        }
      }
    }
  }

  struct SequenceLengths {
    std::int64_t start_q, seqlen_q, seqlen_k;
  };
  SequenceLengths lengths(std::int64_t b) const {
    const auto n = static_cast<std::size_t>(b);
    return {q_side_.start[n], q_side_.used[n], k_side_.used[n]};
  }

  std::int64_t key_row_offset(const TensorView& t, std::int64_t b, std::int64_t j) const {
    if (paged()) {
      const TensorView& table = t_.args.block_table;
      const std::int64_t page = static_cast<const std::int32_t*>(
          table.data)[b * table.strides[0] + j / c_.page_size * table.strides[1]];
      return page * t.strides[0] + j % c_.page_size * t.strides[1];
    }
    if (c_.packed_k) return (k_side_.start[static_cast<std::size_t>(b)] + j) * t.strides[0];
    return b * t.strides[0] + j * t.strides[1];
  }

  void fill_keys(const TensorView& t, Stream stream, double mean) {
    const auto head = static_cast<std::size_t>(c_.packed_k ? 1 : 2);
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const auto [start, seqlen_q, seqlen_k] = lengths(b);
      const std::int64_t source_b = c_.order == MemoryOrder::BroadcastB ? 0 : b;
#pragma omp parallel for schedule(static) if (seqlen_k * c_.num_heads_k * c_.head_dim > kParallelElements)
      for (std::int64_t j = 0; j < seqlen_k; ++j) {
        if (c_.poison && count_rows_seeing(mask_, j, seqlen_q, seqlen_k) == 0) continue;
        for (std::int64_t h = 0; h < c_.num_heads_k; ++h) {
          const std::int64_t source_h = c_.order == MemoryOrder::BroadcastK ? 0 : h;
          fill_row(t, key_row_offset(t, b, j) + h * t.strides[head], t.strides[head + 1], t.shape[head + 1],
                   Random{c_.seed, stream, source_b, source_h, j}, mean);
        }
      }
    }
  }

  /// A bias element holds a number when some sequence that reads it allows the pair.
  void fill_bias() {
    const TensorView& bias = args().bias;
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const auto [start, seqlen_q, seqlen_k] = lengths(b);
      const std::int64_t bias_b = c_.bias_per_batch ? b : 0;
      for (std::int64_t h = 0; h < bias.shape[1]; ++h) {
        for (std::int64_t i = 0; i < seqlen_q; ++i) {
          Random random{c_.seed, kBias, bias_b, h, i};
          const bool whole_row_inf = c_.bias_has_inf && random.chance(8);
          for (std::int64_t j = 0; j < seqlen_k; ++j) {
            const float x = random.normal();
            const bool inf = c_.bias_has_inf && (random.chance(25) || whole_row_inf);
            if (c_.poison && !mask_.allows(i, j, seqlen_q, seqlen_k)) continue;
            store(bias,
                  bias_b * bias.strides[0] + h * bias.strides[1] + i * bias.strides[2] + j * bias.strides[3],
                  inf ? -std::numeric_limits<float>::infinity() : x);
          }
        }
      }
    }
  }

  const Case& c_;
  bool allocate_;
  Mask mask_;
  Side q_side_, k_side_;
  CaseTensors t_;
};

}  // namespace

void CaseTensors::poison_outputs() {
  for (Buffer& buffer : buffers) {
    if (buffer.output.present()) buffer.memory->fill(kPoison);
  }
}

std::optional<std::string> CaseTensors::damage() const {
  for (const Buffer& buffer : buffers) {
    if (!buffer.memory->guards_intact()) return fmt::format("memory beside {} was written", buffer.name);
    if (!buffer.output.present()) {
      if (hash_of(*buffer.memory) != buffer.input_hash)
        return fmt::format("input {} was written", buffer.name);
      continue;
    }
    // Everything but the elements of the view is still poison.
    const TensorView& view = buffer.output;
    const auto bytes = static_cast<std::size_t>(dtype_bytes(view.dtype));
    const auto elements = buffer.memory->size() / bytes;
    if (elements == static_cast<std::size_t>(view.num_elements())) continue;
    std::vector<bool> owned(elements, false);
    const std::int64_t origin = static_cast<const unsigned char*>(view.data) - buffer.memory->bytes();
    std::array<std::int64_t, TensorView::kMaxRank> idx{};
    for (std::int64_t n = 0; n < view.num_elements(); ++n) {
      std::int64_t offset = origin / static_cast<std::int64_t>(bytes);
      for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d)
        offset += idx[d] * view.strides[d];
      owned[static_cast<std::size_t>(offset)] = true;
      for (auto d = static_cast<std::size_t>(view.rank); d-- > 0 && ++idx[d] == view.shape[d];) idx[d] = 0;
    }
    for (std::size_t n = 0; n < elements * bytes; ++n) {
      if (!owned[n / bytes] && buffer.memory->bytes()[n] != kPoison) {
        return fmt::format("memory between the elements of {} was written", buffer.name);
      }
    }
  }
  return std::nullopt;
}

CaseTensors make_tensors(const Case& c) { return Builder(c, true).build(); }

CaseShapes case_shapes(const Case& c) {
  CaseTensors tensors = Builder(c, false).build();
  return {tensors.args, tensors.options};
}

}  // namespace onepass::verify
