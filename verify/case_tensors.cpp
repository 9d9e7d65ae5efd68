#include "verify/case_tensors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "support/float_types.h"
#include "support/message.h"
#include "verify/case_layout.h"
#include "verify/oracle.h"
#include "verify/random.h"

namespace onepass::verify {
namespace {

constexpr std::int64_t kParallelElements = 1 << 16;  // below, starting threads costs more than filling

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
  static const std::array<float, 256> e4m3 = f8_values(DType::F8E4M3), e5m2 = f8_values(DType::F8E5M2);
  const auto& values = dtype == DType::F8E4M3 ? e4m3 : e5m2;
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
  if (view.dtype == DType::I8) {
    const float nearest = std::clamp(std::round(x), -128.0f, 127.0f);
    static_cast<std::int8_t*>(view.data)[offset] = static_cast<std::int8_t>(nearest);
  } else if (dtype_bytes(view.dtype) == 1) {
    static_cast<std::uint8_t*>(view.data)[offset] = to_f8(view.dtype, x);
  } else {
    store_float(view.data, view.dtype, offset, x);
  }
}

/// What the layout says, with memory and values.
class Filler {
 public:
  Filler(const Case& c, CaseLayout layout)
      : c_(c), layout_(std::move(layout)), mask_{c.causal, c.window_left, c.window_right} {}

  CaseTensors fill() {
    check_memory();
    allocate();
    index_tensors();
    score_terms();
    fill_queries();
    fill_keys(args().k, Stream::K, c_.mean);
    fill_keys(args().v, Stream::V, c_.mean_v);
    if (c_.has_bias) fill_bias();
    for (CaseTensors::Buffer& buffer : t_.buffers) {
      if (!buffer.output.present()) buffer.input_hash = content_hash(*buffer.memory);
    }
    return std::move(t_);
  }

 private:
  ForwardArguments& args() { return t_.args; }
  bool paged() const { return c_.page_size > 0; }
  Random random(Stream stream) const { return Random{c_.seed, static_cast<std::int64_t>(stream)}; }

  void check_memory() const {
    double bytes = 0;
    for (const CaseLayout::Buffer& buffer : layout_.buffers) {
      bytes += static_cast<double>(buffer.elements) * static_cast<double>(dtype_bytes(buffer.dtype));
    }
    const double physical =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    if (bytes <= physical) return;
    throw EnvironmentError(format_message(
        "case", fmt::format("'{}' needs {:.3g} GB for its tensors", to_string(c_), bytes * 1e-9),
        fmt::format("at most the {:.3g} GB of this machine", physical * 1e-9), "make the case smaller"));
  }

  void allocate() {
    for (const CaseLayout::Buffer& buffer : layout_.buffers) {
      const auto bytes = static_cast<std::size_t>(dtype_bytes(buffer.dtype));
      t_.buffers.push_back({buffer.name,
                            std::make_unique<GuardedBuffer>(static_cast<std::size_t>(buffer.elements) * bytes,
                                                            c_.seed % 2 == 0 ? 0 : bytes),
                            {},
                            0});
      if (!c_.poison && !buffer.is_output) t_.buffers.back().memory->fill(0);
    }
    t_.args = layout_.args;
    for (const CaseLayout::Slice& slice : layout_.slices) {
      TensorView& view = t_.args.*slice.view;
      CaseTensors::Buffer& buffer = t_.buffers[slice.buffer_idx];
      view.data = static_cast<char*>(buffer.memory->data()) + slice.origin * dtype_bytes(view.dtype);
      if (layout_.buffers[slice.buffer_idx].is_output) buffer.output = view;
    }
  }

  // --- index tensors and per-head values: contiguous ------------------------------------------------------

  void index_tensors() {
    fill_indices(args().cu_seqlens_q, offsets(layout_.q));
    fill_indices(args().cu_seqlens_k, offsets(layout_.k));
    fill_indices(args().seqused_q, layout_.q.used);
    fill_indices(args().seqused_k, layout_.k.used);
    if (paged()) fill_block_table();
  }

  static std::vector<std::int64_t> offsets(const Side& side) {
    std::vector<std::int64_t> all = side.start;
    all.push_back(side.end);
    return all;
  }

  static void fill_indices(const TensorView& view, const std::vector<std::int64_t>& values) {
    if (view.present()) std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(view.data));
  }

  /// Pages in random order; past the end of a sequence, numbers that lead out of the pool.
  void fill_block_table() {
    std::vector<std::int32_t> pages(static_cast<std::size_t>(layout_.num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    Random draw = random(Stream::Pages);
    for (std::size_t n = pages.size(); n > 1; --n) {
      std::swap(pages[n - 1], pages[static_cast<std::size_t>(draw.below(static_cast<std::int64_t>(n)))]);
    }
    constexpr std::int32_t kGarbage[] = {-1, std::numeric_limits<std::int32_t>::max(), 1 << 30,
                                         std::numeric_limits<std::int32_t>::min()};
    const TensorView& table = args().block_table;
    auto* entry = static_cast<std::int32_t*>(table.data);
    std::size_t next = 0;
    for (const std::int64_t tokens : layout_.k.used) {
      const std::int64_t used = pages_of(tokens, c_.page_size);
      for (std::int64_t column = 0; column < table.shape[1]; ++column) {
        *entry++ = column < used ? pages[next++] : kGarbage[draw.below(4)];
      }
    }
  }

  void score_terms() {
    fill_per_head(args().alibi_slopes, Stream::Slopes, [](Random& r) { return 0.5 * r.uniform(); });
    fill_per_head(args().sinks, Stream::Sinks,
                  [](Random& r) { return 2.0 * static_cast<double>(r.normal()); });
    const auto factor = [this](Random& r) { return (0.25 + r.uniform()) / stored_steps(); };
    // Values of pages may differ much, scores may not: exponentials would leave one key.
    const auto value_factor = [&](Random& r) {
      const double x = factor(r);
      return c_.has_page_factors() ? std::ldexp(x, static_cast<int>(r.below(9)) - 4) : x;
    };
    fill_per_head(args().k_descale, Stream::DescaleK, factor);
    fill_per_head(args().v_descale, Stream::DescaleV, value_factor);
    if (c_.has_page_factors() && c_.poison) poison_unused_pages();
  }

  /// Factors of pages that no sequence has must not be read.
  void poison_unused_pages() {
    const TensorView& table = args().block_table;
    std::vector<bool> used(static_cast<std::size_t>(layout_.num_pages));
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const auto* row = static_cast<const std::int32_t*>(table.data) + b * table.shape[1];
      const std::int64_t columns = pages_of(layout_.k.used[static_cast<std::size_t>(b)], c_.page_size);
      for (std::int64_t n = 0; n < columns; ++n) used[static_cast<std::size_t>(row[n])] = true;
    }
    for (const TensorView* view : {&args().k_descale, &args().v_descale}) {
      const std::int64_t heads = view->shape[2];
      for (std::int64_t n = 0; n < view->num_elements(); ++n) {
        if (used[static_cast<std::size_t>(n / heads)]) continue;
        static_cast<float*>(view->data)[n] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  template <class Draw>
  void fill_per_head(const TensorView& view, Stream stream, Draw draw) const {
    Random values = random(stream);
    for (std::int64_t n = 0; n < view.num_elements(); ++n) {
      static_cast<float*>(view.data)[n] = static_cast<float>(draw(values));
    }
  }

  // --- Q, K, V, bias --------------------------------------------------------------------------------------

  Random row_values(Stream stream, std::int64_t b, std::int64_t h, std::int64_t row) const {
    return Random{c_.seed, static_cast<std::int64_t>(stream), b, h, row};
  }

  struct SequenceLengths {
    std::int64_t start_q, seqlen_q, seqlen_k;
  };
  SequenceLengths lengths(std::int64_t b) const {
    const auto n = static_cast<std::size_t>(b);
    return {layout_.q.start[n], layout_.q.used[n], layout_.k.used[n]};
  }

  void fill_row(const TensorView& view, std::int64_t offset, std::int64_t dim_stride, std::int64_t dims,
                Random random, double mean) const {
    const float steps = view.dtype == DType::I8 ? stored_steps() : 1.0f;
    for (std::int64_t d = 0; d < dims; ++d) {
      store(view, offset + d * dim_stride, steps * (static_cast<float>(mean) + random.normal()));
    }
  }
  /// Of K and V in 1, where integers with factors fill their range.
  float stored_steps() const {
    return c_.kv_dtype == DType::I8 && c_.descale != PerHead::None ? 32.0f : 1.0f;
  }

  void fill_queries() {
    const TensorView& q = args().q;
    const auto row = static_cast<std::size_t>(c_.packed_q ? 0 : 1);
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const SequenceLengths s = lengths(b);
#pragma omp parallel for schedule(static) if (s.seqlen_q * c_.num_heads_q * c_.head_dim > kParallelElements)
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        if (c_.poison && count_keys_seen(mask_, i, s.seqlen_q, s.seqlen_k) == 0) continue;
        for (std::int64_t h = 0; h < c_.num_heads_q; ++h) {
          const std::int64_t offset = (c_.packed_q ? s.start_q * q.strides[0] : b * q.strides[0]) +
                                      i * q.strides[row] + h * q.strides[row + 1];
          fill_row(q, offset, q.strides[row + 2], c_.head_dim, row_values(Stream::Q, b, h, i), c_.mean);
        }
      }
    }
  }

  std::int64_t key_row_offset(const TensorView& t, std::int64_t b, std::int64_t j) const {
    if (paged()) {
      const TensorView& table = t_.args.block_table;
      const std::int64_t page = static_cast<const std::int32_t*>(
          table.data)[b * table.strides[0] + j / c_.page_size * table.strides[1]];
      return page * t.strides[0] + j % c_.page_size * t.strides[1];
    }
    if (c_.packed_k) return (layout_.k.start[static_cast<std::size_t>(b)] + j) * t.strides[0];
    return b * t.strides[0] + j * t.strides[1];
  }

  void fill_keys(const TensorView& t, Stream stream, double mean) {
    const auto head = static_cast<std::size_t>(c_.packed_k ? 1 : 2);
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const SequenceLengths s = lengths(b);
      const std::int64_t source_b = c_.order == MemoryOrder::BroadcastB ? 0 : b;
#pragma omp parallel for schedule(static) if (s.seqlen_k * c_.num_heads_k * c_.head_dim > kParallelElements)
      for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
        if (c_.poison && count_rows_seeing(mask_, j, s.seqlen_q, s.seqlen_k) == 0) continue;
        for (std::int64_t h = 0; h < c_.num_heads_k; ++h) {
          const std::int64_t source_h = c_.order == MemoryOrder::BroadcastK ? 0 : h;
          fill_row(t, key_row_offset(t, b, j) + h * t.strides[head], t.strides[head + 1], t.shape[head + 1],
                   row_values(stream, source_b, source_h, j), mean);
        }
      }
    }
  }

  /// A bias element holds a number when some sequence that reads it allows the pair.
  void fill_bias() {
    const TensorView& bias = args().bias;
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      const SequenceLengths s = lengths(b);
      const std::int64_t bias_b = c_.bias_per_batch ? b : 0;
      for (std::int64_t h = 0; h < bias.shape[1]; ++h) {
        for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
          Random draw = row_values(Stream::Bias, bias_b, h, i);
          const bool whole_row_inf = c_.bias_has_inf && draw.chance(8);
          for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
            const float x = draw.normal();
            const bool inf = c_.bias_has_inf && (draw.chance(25) || whole_row_inf);
            if (c_.poison && !mask_.allows(i, j, s.seqlen_q, s.seqlen_k)) continue;
            store(bias,
                  bias_b * bias.strides[0] + h * bias.strides[1] + i * bias.strides[2] + j * bias.strides[3],
                  inf ? -std::numeric_limits<float>::infinity() : x);
          }
        }
      }
    }
  }

  const Case& c_;
  const CaseLayout layout_;
  const Mask mask_;
  CaseTensors t_;
};

ForwardOptions options_of(const Case& c) {
  ForwardOptions o;
  o.causal = c.causal;
  o.window_left = c.window_left;
  o.window_right = c.window_right;
  o.softmax_scale = c.softmax_scale;
  o.softcap = c.softcap;
  o.num_splits = static_cast<int>(c.num_splits);
  o.batch_invariant = c.batch_invariant;
  return o;
}

void give_max_seqlen(const Case& c, ForwardOptions& options) {
  options.max_seqlen_q = c.seqlen_q;
  options.max_seqlen_k = c.seqlen_k;
}

}  // namespace

void CaseTensors::poison_outputs() {
  for (Buffer& buffer : buffers) {
    if (buffer.output.present()) buffer.memory->fill(kPoison);
  }
}

std::size_t content_hash(const GuardedBuffer& memory) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(memory.bytes()), memory.size()});
}

std::optional<std::string> CaseTensors::damage() const { return damage_of(buffers); }

std::optional<std::string> damage_of(const std::vector<CaseTensors::Buffer>& buffers) {
  for (const CaseTensors::Buffer& buffer : buffers) {
    if (!buffer.memory->guards_intact()) return fmt::format("memory beside {} was written", buffer.name);
    if (!buffer.output.present()) {
      if (content_hash(*buffer.memory) != buffer.input_hash)
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

CaseTensors make_tensors(const Case& c) {
  CaseTensors tensors = Filler(c, lay_out(c)).fill();
  tensors.options = options_of(c);
  if (c.gives_max_seqlen) give_max_seqlen(c, tensors.options);
  return tensors;
}

CaseShapes case_shapes(const Case& c) {
  CaseShapes shapes{lay_out(c).args, options_of(c)};
  give_max_seqlen(c, shapes.options);
  return shapes;
}

}  // namespace onepass::verify
