// cpu/append_kv.cpp - new keys and values behind those that a cache holds, rotated if tables are given
//
// Problem    row t of sequence b goes to row cache_seqlens[b] + t of its cache; pairs of the first R elements
//            of keys and of q turn by the angles of their position: x' = x cos - y sin, y' = x sin + y cos
// Work       one row of all heads at a time; threads share the rows
// Numerics   angles, products and quotients by the factors of a cache with 8 bits in f32, one rounding; what
//            is neither turned nor divided is copied bit for bit
#include "backends/cpu/append_kv.h"

#include <array>
#include <cstring>
#include <span>

#include "backends/cpu/sequence.h"
#include "problem/checker.h"
#include "problem/descale.h"
#include "support/float_types.h"

namespace onepass::cpu {
namespace {

constexpr std::size_t kMaxPairs = 512;  // half of the largest head_dim

/// A row of a batch: its sequence, and which of the sequence's rows it is.
struct RowPlace {
  std::int64_t b, t;
};

RowPlace place_of(const TensorView& rows, const TensorView& cu_seqlens, std::int64_t row) {
  if (!cu_seqlens.present()) return {row / rows.shape[1], row % rows.shape[1]};
  std::int64_t low = 0, high = cu_seqlens.shape[0];  // the first offset past `row` is in [low, high]
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (index_value(cu_seqlens, middle) <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return {low - 1, low > 0 ? row - index_value(cu_seqlens, low - 1) : 0};
}

/// All heads of one row of a tensor [..., heads, head_dim].
struct HeadsOfRow {
  const TensorView& view;
  std::int64_t offset;  // of element [..., 0, 0]

  std::int64_t num_heads() const { return view.shape[static_cast<std::size_t>(view.rank - 2)]; }
  std::int64_t head_dim() const { return view.shape[static_cast<std::size_t>(view.rank - 1)]; }
  std::int64_t dim_stride() const { return view.strides[static_cast<std::size_t>(view.rank - 1)]; }
  std::int64_t head(std::int64_t h) const {
    return offset + h * view.strides[static_cast<std::size_t>(view.rank - 2)];
  }
};

HeadsOfRow dense_or_packed(const TensorView& view, RowPlace place, std::int64_t row) {
  if (view.rank == 3) return {view, row * view.strides[0]};
  return {view, place.b * view.strides[0] + place.t * view.strides[1]};
}

void copy_elements(const HeadsOfRow& from, const HeadsOfRow& to, std::int64_t begin) {
  const auto bytes = static_cast<std::size_t>(dtype_bytes(from.view.dtype));
  const std::int64_t count = from.head_dim() - begin;
  const bool contiguous = from.dim_stride() == 1 && to.dim_stride() == 1;
  for (std::int64_t h = 0; h < from.num_heads(); ++h) {
    const char* source = static_cast<const char*>(from.view.data) +
                         (from.head(h) + begin * from.dim_stride()) * static_cast<std::int64_t>(bytes);
    char* target = static_cast<char*>(to.view.data) +
                   (to.head(h) + begin * to.dim_stride()) * static_cast<std::int64_t>(bytes);
    if (contiguous) {
      std::memmove(target, source, static_cast<std::size_t>(count) * bytes);  // q_out may be q
      continue;
    }
    for (std::int64_t d = 0; d < count; ++d) {
      std::memmove(target + d * to.dim_stride() * static_cast<std::int64_t>(bytes),
                   source + d * from.dim_stride() * static_cast<std::int64_t>(bytes), bytes);
    }
  }
}

/// What the heads of one row of a cache with 8 bits are divided by.
struct HeadFactors {
  const TensorView& descale;
  std::int64_t b, page;  // the sequence, and of pages the one that holds the row

  float of(std::int64_t h) const {
    if (!descale.present()) return 1.0f;
    return descale_per_page(descale) ? per_page_value(descale, page, h) : per_head_value(descale, b, h);
  }
};

/// Rounds to the target's dtype.
void divide_elements(const HeadsOfRow& from, const HeadsOfRow& to, std::int64_t begin,
                     const HeadFactors& factors) {
  for (std::int64_t h = 0; h < from.num_heads(); ++h) {
    const float factor = factors.of(h);
    for (std::int64_t d = begin; d < from.head_dim(); ++d) {
      const float x = load_float(from.view.data, from.view.dtype, from.head(h) + d * from.dim_stride());
      store_float(to.view.data, to.view.dtype, to.head(h) + d * to.dim_stride(), x / factor);
    }
  }
}

/// Cosines and sines of one position.
struct Angles {
  std::array<float, kMaxPairs> cos, sin;
  std::int64_t pairs = 0;
  bool interleaved = false;

  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): the pairs there are, written here
  Angles(const AppendArguments& args, bool is_interleaved, std::int64_t position)
      : pairs(args.rotary_cos.shape[1]), interleaved(is_interleaved) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const auto at = static_cast<std::size_t>(i);
      cos[at] = load(args.rotary_cos, position, i);
      sin[at] = load(args.rotary_sin, position, i);
    }
  }

  static float load(const TensorView& table, std::int64_t position, std::int64_t i) {
    return load_float(table.data, table.dtype, position * table.strides[0] + i * table.strides[1]);
  }
};

/// factors: null where the target has the dtype of what is turned.
template <DType kDType>
void turn_heads(const HeadsOfRow& from, const HeadsOfRow& to, const Angles& angles,
                const HeadFactors* factors) {
  const std::int64_t step = angles.interleaved ? 2 : 1, partner = angles.interleaved ? 1 : angles.pairs;
  for (std::int64_t h = 0; h < from.num_heads(); ++h) {
    const float factor = factors != nullptr ? factors->of(h) : 1.0f;
    const auto store = [&](std::int64_t d, float x) {
      const std::int64_t at = to.head(h) + d * to.dim_stride();
      if (factors == nullptr) return store_float(to.view.data, kDType, at, x);
      store_float(to.view.data, to.view.dtype, at, x / factor);
    };
    for (std::int64_t i = 0; i < angles.pairs; ++i) {
      const std::int64_t first = i * step, second = first + partner;
      const float x = load_float(from.view.data, kDType, from.head(h) + first * from.dim_stride());
      const float y = load_float(from.view.data, kDType, from.head(h) + second * from.dim_stride());
      const float cos = angles.cos[static_cast<std::size_t>(i)],
                  sin = angles.sin[static_cast<std::size_t>(i)];
      store(first, x * cos - y * sin);
      store(second, x * sin + y * cos);
    }
  }
}

/// Elements from `begin` on, as they are or, with factors, divided.
void put_elements(const HeadsOfRow& from, const HeadsOfRow& to, std::int64_t begin,
                  const HeadFactors* factors) {
  if (factors == nullptr) return copy_elements(from, to, begin);
  divide_elements(from, to, begin, *factors);
}

void turn(const HeadsOfRow& from, const HeadsOfRow& to, const Angles& angles, const HeadFactors* factors) {
  switch (from.view.dtype) {
    case DType::F32: turn_heads<DType::F32>(from, to, angles, factors); break;
    case DType::F16: turn_heads<DType::F16>(from, to, angles, factors); break;
    default: turn_heads<DType::BF16>(from, to, angles, factors); break;
  }
  if (2 * angles.pairs < from.head_dim()) put_elements(from, to, 2 * angles.pairs, factors);
}

class Append {
 public:
  Append(const AppendArguments& args, const AppendOptions& options) : args_(args), options_(options) {}

  void new_row(std::int64_t row) const {
    const RowPlace place = place_of(args_.k_new, args_.cu_seqlens_new, row);
    if (place.b < 0 || place.b >= batch() || place.t >= num_new(place.b)) return;
    const RowPlace cached = cache_place(place);
    const HeadsOfRow k = dense_or_packed(args_.k_new, place, row), k_cache = of_cache(args_.k_cache, cached);
    const HeadFactors k_factors{args_.k_descale, place.b, cached.b};
    const HeadFactors v_factors{args_.v_descale, place.b, cached.b};
    const bool divides = dtype_bytes(args_.k_cache.dtype) == 1;
    if (args_.rotary_cos.present()) {
      turn(k, k_cache, Angles(args_, options_.rotary_interleaved, first_position(place.b) + place.t),
           divides ? &k_factors : nullptr);
    } else {
      put_elements(k, k_cache, 0, divides ? &k_factors : nullptr);
    }
    put_elements(dense_or_packed(args_.v_new, place, row), of_cache(args_.v_cache, cached), 0,
                 divides ? &v_factors : nullptr);
  }

  void query_row(std::int64_t row) const {
    const RowPlace place = place_of(args_.q, args_.cu_seqlens_q, row);
    if (place.b < 0 || place.b >= batch()) return;
    const std::int64_t position = first_position(place.b) + (options_.q_at_first_position ? 0 : place.t);
    turn(dense_or_packed(args_.q, place, row), dense_or_packed(args_.q_out, place, row),
         Angles(args_, options_.rotary_interleaved, position), nullptr);
  }

  void lengths() const {
    const TensorView& out = args_.seqlens_out;
    for (std::int64_t b = 0; b < batch(); ++b) {
      static_cast<std::int32_t*>(out.data)[b * out.strides[0]] =
          static_cast<std::int32_t>(num_cached(b) + num_new(b));
    }
  }

 private:
  std::int64_t batch() const {
    return args_.cu_seqlens_new.present() ? args_.cu_seqlens_new.shape[0] - 1 : args_.k_new.shape[0];
  }
  std::int64_t num_new(std::int64_t b) const {
    if (args_.seqused_new.present()) return index_value(args_.seqused_new, b);
    if (!args_.cu_seqlens_new.present()) return args_.k_new.shape[1];
    return index_value(args_.cu_seqlens_new, b + 1) - index_value(args_.cu_seqlens_new, b);
  }
  std::int64_t num_cached(std::int64_t b) const {
    return args_.cache_seqlens.present() ? index_value(args_.cache_seqlens, b) : 0;
  }
  std::int64_t first_position(std::int64_t b) const {
    return args_.rotary_positions.present() ? index_value(args_.rotary_positions, b) : num_cached(b);
  }

  /// Page and slot, or sequence and row of the cache.
  RowPlace cache_place(RowPlace place) const {
    const std::int64_t row = num_cached(place.b) + place.t;
    const TensorView& table = args_.block_table;
    if (table.present()) {
      const std::int64_t page_size = args_.k_cache.shape[1];
      const std::int64_t at = place.b * table.strides[0] + row / page_size * table.strides[1];
      return {static_cast<const std::int32_t*>(table.data)[at], row % page_size};
    }
    return {args_.cache_batch_idx.present() ? index_value(args_.cache_batch_idx, place.b) : place.b, row};
  }
  static HeadsOfRow of_cache(const TensorView& cache, RowPlace place) {
    return {cache, place.b * cache.strides[0] + place.t * cache.strides[1]};
  }

  const AppendArguments& args_;
  const AppendOptions& options_;
};

}  // namespace

void append_kv(const AppendArguments& args, const AppendProblem& problem, const AppendOptions& options,
               int num_threads) {
  const Append append(args, options);
  const std::int64_t rows_new = problem.rows_new.total, rows_q = problem.rows_q.total;
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (std::int64_t row = 0; row < rows_new + rows_q; ++row) {
    if (row < rows_new) {
      append.new_row(row);
    } else {
      append.query_row(row - rows_new);
    }
  }
  if (args.seqlens_out.present()) append.lengths();
}

}  // namespace onepass::cpu
