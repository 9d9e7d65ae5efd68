// any/append_kv.cuh - new keys and values behind those that a cache holds, with rotary embedding if tables are given
//
// Problem    row t of sequence b goes to row cache_seqlens[b] + t of its cache, contiguous or paged; keys and rows of q
//            turn by the angles of their position: x' = x cos - y sin, y' = x sin + y cos
// Work       one block per row of all heads: first the new rows, then those of q, then the lengths afterwards (a warp
//            each). A thread takes units: kWidth pairs that turn, or kWidth elements that are copied
// Bound      memory: each row is read once and written once, in pieces of kLoadBytes
// 8 bits     a cache of other elements than the new rows (Stored) holds these divided by its factors
// Numerics   angles, products and quotients in f32, one rounding; what neither turns nor is divided is copied bit for bit
// Memory     every block of a sequence finds out by itself whether all of it fits; if not, it is left alone and reported
// Sources    Su et al. 2021 (arXiv:2104.09864), section 3.2.2
#pragma once

#include "common/round_to_bytes.h"
#include "common/sequence.cuh"
#include "params.h"
#include "ptx/global.cuh"
#include "ptx/math.cuh"
#include "ptx/types.cuh"

namespace onepass::cuda {

ONEPASS_DEVICE Uint32 rounded_byte(E4m3, float x) { return round_to_e4m3(x); }
ONEPASS_DEVICE Uint32 rounded_byte(E5m2, float x) { return round_to_e5m2(x); }
ONEPASS_DEVICE Uint32 rounded_byte(I8, float x) { return round_to_i8(x); }

template <class Spec>
struct AppendKv {
  using Element = typename Spec::Element;
  using Stored = typename Spec::Stored;  // in the cache
  static constexpr int kThreads = Spec::kWarps * 32;
  static constexpr int kSharedBytes = 0;
  static constexpr int kWidth = Spec::kLoadBytes / 2;  // elements of a piece
  static_assert(kWidth == 8 || kWidth == 1, "pieces of 16 bytes, or single elements");

  const AppendKvParams& p;

  ONEPASS_DEVICE AppendKv(const AppendKvParams& params, char* /*shared*/) : p(params) {}

  ONEPASS_DEVICE void run(char* /*shared*/) const {
    const int block = static_cast<int>(blockIdx.x);
    if (block < p.rows_new) return append_row(block);
    if (block - p.rows_new < p.rows_q) return turn_query(block - p.rows_new);
    const Index64 b =
        (static_cast<Index64>(block) - p.rows_new - p.rows_q) * Spec::kWarps + static_cast<int>(threadIdx.x) / 32;
    if (b < p.batch) store_length(static_cast<int>(b));
  }

  // ---- where rows belong

  struct Place {
    int batch_idx, t;  // row t of a sequence
  };
  ONEPASS_DEVICE Place place_of(const IndexParams& cu_seqlens, const FastDivisor& seqlen, int row) const {
    if (cu_seqlens.data == nullptr) {
      const int b = seqlen.quotient(row);
      return {b, seqlen.remainder(row, b)};
    }
    const int b = sequence_before(cu_seqlens, p.batch, row);
    return {b, b < 0 ? 0 : difference(row, index_at(cu_seqlens, b))};
  }

  struct Lengths {
    Index64 cached, added, queries, position;
    bool inside;  // the tensors of new rows and of q
  };
  ONEPASS_DEVICE Lengths lengths_of(int b) const {
    Lengths n{0, p.seqlen_new.divisor, p.seqlen_q.divisor, 0, true};
    if (p.cu_seqlens_new.data != nullptr) packed_length(p.cu_seqlens_new, b, p.rows_new, n.added, n.inside);
    if (p.cu_seqlens_q.data != nullptr) packed_length(p.cu_seqlens_q, b, p.rows_q, n.queries, n.inside);
    if (p.seqused_new.data != nullptr) {
      const Index64 used = index_at(p.seqused_new, b);
      n.inside = n.inside && used >= 0 && used <= n.added;
      n.added = used;
    }
    if (p.cache_seqlens.data != nullptr) n.cached = index_at(p.cache_seqlens, b);
    n.position = p.rotary_positions.data != nullptr ? index_at(p.rotary_positions, b) : n.cached;
    return n;
  }
  ONEPASS_DEVICE static void packed_length(const IndexParams& cu_seqlens, int b, int rows, Index64& length,
                                           bool& inside) {
    const Index64 begin = index_at(cu_seqlens, b), end = index_at(cu_seqlens, b + 1);
    inside = inside && begin >= 0 && begin <= end && end <= rows;
    length = end - begin;
  }

  ONEPASS_DEVICE int page_of(int b, int column) const {
    return p.block_table[b * p.table_batch_stride + column * p.table_page_stride];
  }

  /// For all threads of a warp.
  ONEPASS_DEVICE bool fits(int b, const Lengths& n) const {
    if (!n.inside || n.cached < 0 || n.cached + n.added > p.capacity) return false;
    if (p.rotary_cos != nullptr) {
      const Index64 queries = p.q_at_first_position && n.queries > 1 ? 1 : n.queries;
      const Index64 turned = n.added > queries ? n.added : queries;
      if (turned > 0 && (n.position < 0 || n.position + turned > p.num_positions)) return false;
    }
    if (n.added == 0) return true;
    if (p.cache_batch_idx.data != nullptr) {
      const int row = index_at(p.cache_batch_idx, b);
      if (row < 0 || row >= p.cache_rows) return false;
    }
    if (p.block_table == nullptr) return true;
    const int last = p.page_size.quotient(static_cast<int>(n.cached + n.added - 1));
    bool outside = false;
    for (int column = p.page_size.quotient(static_cast<int>(n.cached)) + static_cast<int>(threadIdx.x) % 32;
         column <= last; column += 32) {
      const int page = page_of(b, column);
      outside = outside || page < 0 || page >= p.num_pages;
    }
    return !__any_sync(~0u, outside);
  }

  ONEPASS_DEVICE void report(int b) const {
    if (threadIdx.x % 32 != 0) return;
    if (p.overflow.data != nullptr) {
      p.overflow.data[b * p.overflow.stride] = 1;
    } else {
      *p.error_flag = static_cast<int>(KernelError::LengthPastCapacity);
    }
  }

  /// Of element [0, 0] of row `t` of a sequence in the cache.
  struct CacheRow {
    Index64 first, second;  // sequence and row, or page and slot
    ONEPASS_DEVICE Index64 offset(const TensorParams& cache) const {
      return first * cache.batch_stride + second * cache.row_stride;
    }
  };
  ONEPASS_DEVICE CacheRow cache_row(int b, Index64 row) const {
    if (p.block_table != nullptr) {
      const int column = p.page_size.quotient(static_cast<int>(row));
      return {page_of(b, column), p.page_size.remainder(static_cast<int>(row), column)};
    }
    return {p.cache_batch_idx.data != nullptr ? index_at(p.cache_batch_idx, b) : b, row};
  }

  /// What a head of a row of the cache is divided by.
  ONEPASS_DEVICE static float factor_of(const ScaleParams& scale, int b, const CacheRow& row, int head) {
    if (sizeof(Stored) != 1 || scale.data == nullptr) return 1.0f;
    return scale.data[b * scale.batch_stride + row.first * scale.page_stride + head * scale.head_stride];
  }

  /// Of a dense tensor, or a packed one, whose batch_stride is 0.
  ONEPASS_DEVICE static Index64 row_offset(const TensorParams& t, bool packed, const Place& place, int row) {
    return place.batch_idx * t.batch_stride + static_cast<Index64>(packed ? row : place.t) * t.row_stride;
  }

  // ---- what blocks do

  ONEPASS_DEVICE void append_row(int row) const {
    const Place place = place_of(p.cu_seqlens_new, p.seqlen_new, row);
    if (place.batch_idx < 0) return;
    const Lengths n = lengths_of(place.batch_idx);
    if (!fits(place.batch_idx, n)) return report(place.batch_idx);
    if (place.t >= n.added) return;
    const bool packed = p.cu_seqlens_new.data != nullptr;
    const CacheRow target = cache_row(place.batch_idx, n.cached + place.t);
    const Element* k = elements(p.k_new) + row_offset(p.k_new, packed, place, row);
    const Element* v = elements(p.v_new) + row_offset(p.v_new, packed, place, row);
    Stored* k_cache = static_cast<Stored*>(p.k_cache.data) + target.offset(p.k_cache);
    Stored* v_cache = static_cast<Stored*>(p.v_cache.data) + target.offset(p.v_cache);
    const int num_k = p.num_heads_k * p.k_units.divisor, num_v = p.num_heads_k * p.v_units.divisor;
    for (int index = static_cast<int>(threadIdx.x); index < num_k + num_v; index += kThreads) {
      if (index < num_k) {
        const int head = p.k_units.quotient(index);
        do_unit(k + head * p.k_new.head_stride, k_cache + head * p.k_cache.head_stride,
                p.k_units.remainder(index, head), n.position + place.t,
                factor_of(p.k_scale, place.batch_idx, target, head));
      } else {
        const int head = p.v_units.quotient(index - num_k), d = p.v_units.remainder(index - num_k, head) * kWidth;
        copy(v + head * p.v_new.head_stride + d, v_cache + head * p.v_cache.head_stride + d,
             factor_of(p.v_scale, place.batch_idx, target, head));
      }
    }
  }

  ONEPASS_DEVICE void turn_query(int row) const {
    const Place place = place_of(p.cu_seqlens_q, p.seqlen_q, row);
    if (place.batch_idx < 0) return;
    const Lengths n = lengths_of(place.batch_idx);
    if (!fits(place.batch_idx, n)) return report(place.batch_idx);
    if (place.t >= n.queries) return;
    const bool packed = p.cu_seqlens_q.data != nullptr;
    const Element* q = elements(p.q) + row_offset(p.q, packed, place, row);
    Element* q_out = elements(p.q_out) + row_offset(p.q_out, packed, place, row);
    const Index64 position = n.position + (p.q_at_first_position ? 0 : place.t);
    for (int index = static_cast<int>(threadIdx.x); index < p.num_heads_q * p.k_units.divisor; index += kThreads) {
      const int head = p.k_units.quotient(index);
      do_unit(q + head * p.q.head_stride, q_out + head * p.q_out.head_stride, p.k_units.remainder(index, head),
              position, 1.0f);
    }
  }

  /// For all threads of a warp.
  ONEPASS_DEVICE void store_length(int b) const {
    const Lengths n = lengths_of(b);
    const bool whole = fits(b, n);
    if (!whole) report(b);
    if (threadIdx.x % 32 == 0) {
      p.seqlens_out.data[b * p.seqlens_out.stride] = static_cast<int>(whole ? n.cached + n.added : n.cached);
    }
  }

  // ---- units

  ONEPASS_DEVICE static Element* elements(const TensorParams& t) { return static_cast<Element*>(t.data); }

  /// A unit of a row of keys or of q: those that turn come first. Only 8 bits are divided by the factor.
  template <class To>
  ONEPASS_DEVICE void do_unit(const Element* from, To* to, int unit, Index64 position, float factor) const {
    const int turning = p.rotary_pairs / kWidth;
    if (unit < turning) return turn(from, to, unit, position, factor);
    const int d = 2 * p.rotary_pairs + (unit - turning) * kWidth;
    copy(from + d, to + d, factor);
  }

  template <class To>
  ONEPASS_DEVICE static void copy(const Element* from, To* to, float factor) {
    if constexpr (sizeof(To) == 1) {
      float x[kWidth];
      load(from, x);
      store(to, x, factor);
    } else if constexpr (kWidth == 8) {
      store_global(to, *reinterpret_cast<const uint4*>(from));
    } else {
      *to = *from;
    }
  }

  /// Everything is read before anything is written: `to` may be `from`.
  template <class To>
  ONEPASS_DEVICE void turn(const Element* from, To* to, int unit, Index64 position, float factor) const {
    const int first = (p.interleaved ? 2 : 1) * unit * kWidth;
    const int second = first + (p.interleaved ? kWidth : p.rotary_pairs);
    float x[2 * kWidth];
    load(from + first, x);
    load(from + second, x + kWidth);
    float cos[kWidth], sin[kWidth];
    load_angles(p.rotary_cos, position * p.cos_stride + unit * kWidth, cos);
    load_angles(p.rotary_sin, position * p.sin_stride + unit * kWidth, sin);
    if (p.interleaved) {
      turn_pairs<2, 1>(x, cos, sin);
    } else {
      turn_pairs<1, kWidth>(x, cos, sin);
    }
    store(to + first, x, factor);
    store(to + second, x + kWidth, factor);
  }

  template <int kStep, int kPartner>
  ONEPASS_DEVICE static void turn_pairs(float (&x)[2 * kWidth], const float (&cos)[kWidth],
                                        const float (&sin)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float a = x[i * kStep], b = x[i * kStep + kPartner];
      x[i * kStep] = a * cos[i] - b * sin[i];
      x[i * kStep + kPartner] = a * sin[i] + b * cos[i];
    }
  }

  ONEPASS_DEVICE void load_angles(const void* table, Index64 offset, float (&out)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      out[i] = p.tables_are_f32 ? static_cast<const float*>(table)[offset + i]
                                : ElementTraits<Element>::to_float(static_cast<const Element*>(table)[offset + i]);
    }
  }

  ONEPASS_DEVICE static float to_float(Uint32 bits) {
    return ElementTraits<Element>::to_float(Element{static_cast<unsigned short>(bits)});
  }

  ONEPASS_DEVICE static void load(const Element* from, float* x) {
    if constexpr (kWidth == 8) {
      const uint4 words = *reinterpret_cast<const uint4*>(from);
      x[0] = to_float(words.x), x[1] = to_float(words.x >> 16);
      x[2] = to_float(words.y), x[3] = to_float(words.y >> 16);
      x[4] = to_float(words.z), x[5] = to_float(words.z >> 16);
      x[6] = to_float(words.w), x[7] = to_float(words.w >> 16);
    } else {
      x[0] = ElementTraits<Element>::to_float(*from);
    }
  }

  template <class To>
  ONEPASS_DEVICE static void store(To* to, const float* x, float factor) {
    using Traits = ElementTraits<Element>;
    if constexpr (sizeof(To) == 1 && kWidth == 8) {
      store_global(to, uint2{four_bytes<To>(x, factor), four_bytes<To>(x + 4, factor)});
    } else if constexpr (sizeof(To) == 1) {
      *to = To{static_cast<unsigned char>(rounded_byte(To{}, x[0] / factor))};
    } else if constexpr (kWidth == 8) {
      store_global(to, uint4{Traits::pack(x[0], x[1]), Traits::pack(x[2], x[3]), Traits::pack(x[4], x[5]),
                             Traits::pack(x[6], x[7])});
    } else {
      *to = Element{static_cast<unsigned short>(Traits::pack(x[0], 0.0f))};
    }
  }

  template <class To>
  ONEPASS_DEVICE static Uint32 four_bytes(const float* x, float factor) {
    return rounded_byte(To{}, x[0] / factor) | rounded_byte(To{}, x[1] / factor) << 8 |
           rounded_byte(To{}, x[2] / factor) << 16 | rounded_byte(To{}, x[3] / factor) << 24;
  }
};

}  // namespace onepass::cuda
