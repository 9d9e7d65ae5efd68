// cpu/simd/decode.cpp - attention forward for few query rows: lanes are head dimensions
//
// Problem    one work item: up to 16 packed query rows (decoding: the group of one query) of each of some
//            key heads of a sequence, against a range of key blocks; every layout, dtype, mask, score feature
// Tile       tile_n keys of all heads of the item. A pass over K makes the scores, then come the softmaxes,
//            then a pass over V. Both passes go by chunks of 8 keys, and in a chunk head by head: rows of one
//            head are apart by all heads (or by pages), so that going by head would read memory in pieces of
//            a row, at half the speed of reading it in order; 8 keys of all heads lie together. (More than 8
//            rows at a distance of 4 KiB would share the 8 ways of an L1 set.)
// Registers  scores: 4 keys x 4 rows of dot products (2 rows with 16 registers), then a transposing sum;
//            output: as many rows x 4 vectors of head_dim_v over the keys of a chunk. bf16 is promoted two
//            vectors at a time (Bf16Pairs), Q and O have their elements in that order meanwhile
// Pipeline   rows are read where they lie; what comes some 16 KiB later is prefetched while a chunk is at
//            work. 8-bit rows, and those whose last dimension is not contiguous or not whole vectors, are
//            first gathered for one chunk and head: 8-bit ones as f32, others as they are, so that every
//            layout meets the same arithmetic
// Bound      memory: 2 (D + Dv) row-elements read per key for 2 g (D + Dv) FLOP, g query heads per key head
// Masks      per query a contiguous range of keys; rows that see the same ones go together, and hidden V rows
//            (they may hold NaN) are not touched
// Order      a row's sums go key by key within a tile, then by tile; tiles begin at fixed keys. So its bits
//            do not depend on the rows beside it, nor on the number of heads in an item
// Numerics   as prefill.cpp
#include "backends/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/decode.cpp"
#include "hwy/foreach_target.h"
// After foreach_target
#include <array>
#include <span>
#include <type_traits>

#include "backends/cpu/simd/finish-inl.h"
#include "backends/cpu/simd/score-inl.h"
#include "backends/cpu/simd/targets-inl.h"
#include "backends/cpu/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

inline constexpr std::int64_t kChunk = 8;  // keys
/// How far ahead rows are asked for: what a core has under way at a latency of some 100 ns, and some more.
inline constexpr std::int64_t kBytesAhead = std::int64_t{16} << 10;

inline constexpr std::int64_t kScoreStride = kMostCpuTileN;
inline constexpr int kKeys = 4;  // that dot products are made with at a time

/// How a row is read in the loops: Raw is its type there, load() makes kVectors vectors of as many elements.
template <class Format>
struct InOrder {
  using Raw = typename Format::Raw;
  static constexpr int kVectors = 1;
  static HWY_INLINE void load(const Raw* p, V32* x) { x[0] = Format::load(p); }
};

#if HWY_TARGET == HWY_SCALAR
using Bf16Pairs = InOrder<LoadBf16>;
#else
/// The elements of even index, then those of odd index: a shift and a mask instead of two widenings and two
/// shifts.
struct Bf16Pairs {
  using Raw = std::uint16_t;
  static constexpr int kVectors = 2;
  static HWY_INLINE void load(const Raw* p, V32* x) {
    const hn::Repartition<std::uint16_t, F32> du16;
    const hn::Repartition<std::uint32_t, F32> du32;
    const auto pairs = hn::BitCast(du32, hn::LoadU(du16, p));
    x[0] = hn::BitCast(kF32, hn::ShiftLeft<16>(pairs));
    x[1] = hn::BitCast(kF32, hn::And(pairs, hn::Set(du32, 0xffff0000u)));
  }
};
#endif

#if HWY_TARGET != HWY_SCALAR
/// Adds the 128-bit blocks of x and stores the four sums.
template <class D>
HWY_INLINE void add_blocks(D d, hn::Vec<D> x, float* sums) {
  if constexpr (hn::MaxLanes(D{}) <= 4) {
    hn::StoreU(x, d, sums);
  } else {
    const hn::Half<D> half;
    add_blocks(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), sums);
  }
}
#endif

/// sums[t] = sum of the lanes of x[t], for four vectors.
HWY_INLINE void store_sums_of_four(const V32* x, float* sums) {
#if HWY_TARGET == HWY_SCALAR
  for (int t = 0; t < 4; ++t) sums[t] = hn::GetLane(x[t]);
#else
  const hn::Repartition<std::uint64_t, F32> d64;
  const V32 x01 = hn::Add(hn::InterleaveLower(kF32, x[0], x[1]), hn::InterleaveUpper(kF32, x[0], x[1]));
  const V32 x23 = hn::Add(hn::InterleaveLower(kF32, x[2], x[3]), hn::InterleaveUpper(kF32, x[2], x[3]));
  const auto low = hn::InterleaveLower(d64, hn::BitCast(d64, x01), hn::BitCast(d64, x23));
  const auto high = hn::InterleaveUpper(d64, hn::BitCast(d64, x01), hn::BitCast(d64, x23));
  add_blocks(kF32, hn::Add(hn::BitCast(kF32, low), hn::BitCast(kF32, high)), sums);
#endif
}

/// A block of keys as an item sees it. Keys count from the block's first.
struct KeyTile {
  std::int64_t key_begin;  // of the block, in the sequence
  KeyRange keys;           // that some row of the item sees
  const std::int64_t* k_offsets;
  const std::int64_t* v_offsets;

  bool empty() const { return keys.begin >= keys.end; }
  std::int64_t chunk_begin() const { return keys.begin / kChunk; }
  std::int64_t chunk_end() const { return empty() ? 0 : (keys.end - 1) / kChunk + 1; }
  /// The keys of a chunk that lie in `range`.
  static KeyRange chunk_keys(std::int64_t chunk, KeyRange range) {
    return {max_index(range.begin, chunk * kChunk), min_index(range.end, (chunk + 1) * kChunk)};
  }
};

/// Packed rows of a head, and the keys of a tile that they see.
struct RowGroup {
  std::int64_t row_begin, row_end;
  KeyRange keys;
};

class RowGroups {
 public:
  /// Joins the group before it if that sees the same keys.
  void add(const RowGroup& group) {
    RowGroup& last = groups_[count_ > 0 ? count_ - 1 : 0];
    if (count_ > 0 && last.keys.begin == group.keys.begin && last.keys.end == group.keys.end) {
      last.row_end = group.row_end;
    } else {
      groups_[count_++] = group;
    }
  }
  std::span<const RowGroup> list() const { return {groups_.data(), count_}; }

 private:
  std::array<RowGroup, kMaxDecodeRows> groups_;
  std::size_t count_ = 0;
};

/// Rows that will be read soon, asked for one by one between the products.
struct Ahead {
  std::array<const std::byte*, kChunk> rows;
  std::int64_t count = 0, bytes = 0, done = 0;

  HWY_INLINE void ask_for_one() {
    if (done < count) prefetch_row(rows[static_cast<std::size_t>(done++)], bytes);
  }
  HWY_INLINE void ask_for_rest() {
    while (done < count) ask_for_one();
  }
};

/// Rows: how rows are read in the loops, InOrder<...> or Bf16Pairs.
template <class Rows>
class DecodeItem {
  using Raw = typename Rows::Raw;
  using ChunkRows = std::array<const Raw*, kChunk>;
  static constexpr std::int64_t kStep = kLanes * Rows::kVectors;  // elements that are loaded together

  /// K or V of the item's heads.
  struct Operand {
    const std::byte* data;
    TensorStrides strides;
    std::int64_t element_bytes, num_elements, padded;  // of a row
    bool gathered;
    float* buffer;  // for the gathered rows of a chunk
    std::int64_t buffer_stride;

    const std::byte* row(std::int64_t offset, std::int64_t head) const {
      return data + (offset + head * strides.head) * element_bytes;
    }
    Raw* gathered_row(std::int64_t t) const { return reinterpret_cast<Raw*>(buffer + t * buffer_stride); }
  };

 public:
  DecodeItem(const ForwardContext& context, const WorkItem& item, const Scratch& scratch)
      : context_(context),
        problem_(context.problem),
        item_(item),
        scratch_(scratch),
        group_(problem_.group()),
        num_rows_(item.num_rows()),
        k_(operand(context.args.k, problem_.k, problem_.head_dim, scratch.k, scratch.k_stride)),
        v_(operand(context.args.v, problem_.v, problem_.head_dim_v, scratch.v, scratch.v_stride)) {
    const std::int64_t chunk_bytes = kChunk * item.num_heads_k * problem_.head_dim * k_.element_bytes;
    chunks_ahead_ = min_index(max_index(kBytesAhead / chunk_bytes, 1), context.tile_n / kChunk);
    for (std::int64_t h = 0; h < item.num_heads_k; ++h) {
      rules_[static_cast<std::size_t>(h)] = score_rule(context, item.of_head(h));
    }
  }

  void run() const {
    load_queries();
    // Two sets of offsets, used in turns: this tile's and the next one's.
    KeyTile next = tile_of(item_.n_block_min);
    for (std::int64_t n_block = item_.n_block_min; n_block < item_.n_block_max; ++n_block) {
      const KeyTile tile = next;
      next = tile_of(n_block + 1);
      if (!tile.empty()) visit(tile, next);
    }
    for (std::int64_t h = 0; h < item_.num_heads_k; ++h) finish_head(h);
  }

 private:
  Operand operand(const TensorView& view, const TensorStrides& strides, std::int64_t n, float* buffer,
                  std::int64_t buffer_stride) const {
    const std::int64_t bytes = dtype_bytes(problem_.kv_dtype), padded = round_up_to_steps(n);
    const bool gathered = bytes != sizeof(Raw) || strides.dim != 1 || padded != n;
    return {
        static_cast<const std::byte*>(view.data), strides, bytes, n, padded, gathered, buffer, buffer_stride};
  }
  static std::int64_t round_up_to_steps(std::int64_t n) { return (n + kStep - 1) / kStep * kStep; }

  // Rows of the item are numbered head by head: row r of head h is h * num_rows_ + r.
  std::int64_t query_of(std::int64_t r) const { return (item_.row_begin + r % num_rows_) / group_; }
  std::int64_t head_of(std::int64_t r) const {
    return (item_.head_k + r / num_rows_) * group_ + (item_.row_begin + r % num_rows_) % group_;
  }
  const ScoreRule& rule_of(std::int64_t r) const { return rules_[static_cast<std::size_t>(r / num_rows_)]; }
  std::int64_t all_rows() const { return num_rows_ * item_.num_heads_k; }
  float* scores(std::int64_t r) const { return scratch_.scores + r * kScoreStride; }
  float* out(std::int64_t r) const { return scratch_.out + r * v_.padded; }
  float* tile_sum(std::int64_t r) const { return scratch_.rows + r * v_.padded; }

  /// Index, among the elements of a row as the loops hold them, of element d.
  static std::int64_t place_of(std::int64_t d) {
    const std::int64_t in_step = d % kStep;
    return d - in_step + in_step % Rows::kVectors * kLanes + in_step / Rows::kVectors;
  }

  void load_queries() const {
    with_format(problem_.q_dtype, [&]<class QFormat>(QFormat) {
      const auto* q = static_cast<const typename QFormat::Raw*>(context_.args.q.data);
      for (std::int64_t r = 0; r < all_rows(); ++r) {
        load_row<QFormat>(q + row_offset_q(item_.sequence, problem_.q, query_of(r), head_of(r)),
                          problem_.q.dim, problem_.head_dim, scratch_.line);
        float* row = scratch_.q + r * k_.padded;
        for (std::int64_t d = 0; d < k_.padded; ++d) {
          row[place_of(d)] = d < problem_.head_dim ? scratch_.line[d] : 0.0f;
        }
      }
    });
    for (std::int64_t r = 0; r < all_rows(); ++r) {
      scratch_.row_max[r] = -kInfinity;
      scratch_.row_sum[r] = 0.0f;
    }
    std::memset(scratch_.out, 0, static_cast<std::size_t>(all_rows() * v_.padded) * sizeof(float));
  }

  void finish_head(std::int64_t h) const {
    const WorkItem head = item_.of_head(h);
    for (std::int64_t r = 0; r < num_rows_; ++r) {
      const std::int64_t row = h * num_rows_ + r;
      for (std::int64_t d = 0; d < v_.padded; ++d) scratch_.line[d] = out(row)[place_of(d)];
      finish_row(context_, head, rule_of(row), item_.row_begin + r, scratch_.row_max[row],
                 scratch_.row_sum[row], scratch_.line);
    }
  }

  /// Block n_block, or an empty tile past the item's last one.
  KeyTile tile_of(std::int64_t n_block) const {
    const std::int64_t begin = n_block * context_.tile_n, turn = (n_block & 1) * context_.tile_n;
    KeyTile tile{begin, {0, 0}, scratch_.k_offsets + turn, scratch_.v_offsets + turn};
    if (n_block >= item_.n_block_max) return tile;
    const KeyRange seen =
        visible_keys(item_.band, item_.sequence.seqlen_k, query_of(0), query_of(num_rows_ - 1) + 1);
    tile.keys = {max_index(seen.begin - begin, 0), min_index(seen.end - begin, context_.tile_n)};
    if (tile.empty()) return tile;
    const auto write_offsets = [&](const TensorStrides& strides, std::int64_t* offsets) {
      row_offsets_k(problem_, context_.args, item_.sequence, strides, begin + tile.keys.begin,
                    tile.keys.end - tile.keys.begin, item_.head_k, offsets + turn + tile.keys.begin);
    };
    write_offsets(problem_.k, scratch_.k_offsets);
    write_offsets(problem_.v, scratch_.v_offsets);
    return tile;
  }

  void visit(const KeyTile& tile, const KeyTile& next) const {
    const RowGroups groups = row_groups(tile);
    for (std::int64_t chunk = tile.chunk_begin(); chunk < tile.chunk_end(); ++chunk) {
      for (std::int64_t h = 0; h < item_.num_heads_k; ++h) score_chunk(tile, chunk, h);
    }
    for_each_row(groups, [&](std::int64_t r, KeyRange keys) {
      if (!rule_of(r).direct) finish_scores(r, tile.key_begin, keys.begin, keys.end);
      softmax(r, keys.begin, keys.end);
    });
    for (std::int64_t chunk = tile.chunk_begin(); chunk < tile.chunk_end(); ++chunk) {
      for (std::int64_t h = 0; h < item_.num_heads_k; ++h) weigh_chunk(tile, next, groups, chunk, h);
    }
    for_each_row(groups, [&](std::int64_t r, KeyRange) { add_tile_sum(r); });
  }

  /// Those rows of a head that see keys of the tile. Rows of one query see the same ones, and mostly those of
  /// all queries do.
  RowGroups row_groups(const KeyTile& tile) const {
    RowGroups groups;
    for (std::int64_t r = 0; r < num_rows_;) {
      const std::int64_t i = query_of(r);
      const KeyRange seen = visible_keys(item_.band, item_.sequence.seqlen_k, i, i + 1);
      const KeyRange keys{max_index(seen.begin - tile.key_begin, tile.keys.begin),
                          min_index(seen.end - tile.key_begin, tile.keys.end)};
      const std::int64_t end = min_index(num_rows_, (i + 1) * group_ - item_.row_begin);
      if (keys.begin < keys.end) groups.add({r, end, keys});
      r = end;
    }
    return groups;
  }

  /// Calls f(row, keys) for the rows of all heads that see keys.
  template <class F>
  void for_each_row(const RowGroups& groups, const F& f) const {
    for (std::int64_t first = 0; first < all_rows(); first += num_rows_) {
      for (const RowGroup& group : groups.list()) {
        for (std::int64_t r = group.row_begin; r < group.row_end; ++r) f(first + r, group.keys);
      }
    }
  }

  /// Rows of a chunk of head h, gathered if need be. Keys outside of `keys` are replaced by its nearest one.
  HWY_INLINE ChunkRows rows_of(const Operand& operand, const std::int64_t* offsets, KeyRange keys,
                               std::int64_t chunk, std::int64_t h) const {
    ChunkRows rows;
    const std::byte* first = operand.row(0, h);
    for (std::int64_t t = 0; t < kChunk; ++t) {
      const std::int64_t key = max_index(keys.begin, min_index(chunk * kChunk + t, keys.end - 1));
      const std::byte* row = first + offsets[key] * operand.element_bytes;
      rows[static_cast<std::size_t>(t)] = reinterpret_cast<const Raw*>(row);
    }
    if (operand.gathered) gather(operand, rows);
    return rows;
  }

  /// The gathered rows of a chunk of head h by the factors of their pages, if there are such factors.
  void multiply_by_page_factors(const Operand& operand, const TensorView& descale, const KeyTile& tile,
                                std::int64_t chunk, std::int64_t h) const {
    if constexpr (std::is_same_v<Raw, float>) {  // as what 8 bits are gathered
      if (!descale_per_page(descale)) return;
      for (std::int64_t t = 0; t < kChunk; ++t) {
        const std::int64_t key = max_index(tile.keys.begin, min_index(chunk * kChunk + t, tile.keys.end - 1));
        multiply_row(operand.gathered_row(t), operand.padded,
                     row_descale(problem_, context_.args, item_.sequence, descale, tile.key_begin + key,
                                 item_.head_k + h));
      }
    }
  }

  /// Rows that are in place become rows in the buffer.
  void gather(const Operand& operand, ChunkRows& rows) const {
    for (std::int64_t t = 0; t < kChunk; ++t) {
      const Raw*& row = rows[static_cast<std::size_t>(t)];
      Raw* gathered = operand.gathered_row(t);
      if constexpr (std::is_same_v<Raw, float>) {
        with_format(problem_.kv_dtype, [&]<class Format>(Format) {
          load_row<Format>(reinterpret_cast<const typename Format::Raw*>(row), operand.strides.dim,
                           operand.num_elements, gathered);
        });
      } else {
        for (std::int64_t d = 0; d < operand.padded; ++d) {
          gathered[d] = d < operand.num_elements ? row[d * operand.strides.dim] : Raw{};
        }
      }
      row = gathered;
    }
  }

  /// Part h of the rows that come chunks_ahead_ after this chunk, of K if `in_k`: K of a tile, its V, then K
  /// of the next tile. In the order of memory, which the hardware's prefetcher follows: where the heads of a
  /// key lie side by side, part h is not head h.
  HWY_INLINE Ahead ahead_of(const KeyTile& tile, const KeyTile& following, bool in_k, std::int64_t chunk,
                            std::int64_t h) const {
    const KeyTile* of = &tile;
    chunk += chunks_ahead_;
    if (chunk >= tile.chunk_end()) {
      of = &following;
      chunk += following.chunk_begin() - tile.chunk_end();
      in_k = !in_k;
    }
    Ahead ahead;
    const Operand& operand = in_k ? k_ : v_;
    if (operand.strides.dim != 1) return ahead;
    ahead.bytes = operand.num_elements * operand.element_bytes;
    const KeyRange keys = KeyTile::chunk_keys(chunk, of->keys);
    const std::int64_t* offsets = in_k ? of->k_offsets : of->v_offsets;
    const bool by_key = operand.strides.head < operand.strides.row;
    std::int64_t key = by_key ? keys.begin + h * kChunk / item_.num_heads_k : keys.begin;
    std::int64_t head = by_key ? h * kChunk % item_.num_heads_k : h;
    while (key < keys.end && ahead.count < kChunk) {
      ahead.rows[static_cast<std::size_t>(ahead.count++)] = operand.row(offsets[key], head);
      if (!by_key) {
        ++key;
      } else if (++head == item_.num_heads_k) {
        head = 0;
        ++key;
      }
    }
    return ahead;
  }

  /// Calls f with 4 (where there are registers for it), 2 or 1 rows as a constant, at most `left` of them;
  /// returns their number.
  template <class F>
  static HWY_INLINE std::int64_t for_row_count(std::int64_t left, const F& f) {
    if constexpr (kRegisters >= 32) {
      if (left >= 4) return f(std::integral_constant<int, 4>{}), 4;
    }
    if (left >= 2) return f(std::integral_constant<int, 2>{}), 2;
    return f(std::integral_constant<int, 1>{}), 1;
  }

  /// Raw dot products of the rows of head h with the keys of a chunk.
  void score_chunk(const KeyTile& tile, std::int64_t chunk, std::int64_t h) const {
    const ChunkRows keys = rows_of(k_, tile.k_offsets, tile.keys, chunk, h);
    multiply_by_page_factors(k_, context_.args.k_descale, tile, chunk, h);
    Ahead ahead = ahead_of(tile, tile, true, chunk, h);
    const std::int64_t end = (h + 1) * num_rows_;
    for (std::int64_t t = 0; t < kChunk; t += kKeys) {
      for (std::int64_t r = h * num_rows_; r < end;) {
        r += for_row_count(end - r, [&](auto count) {
          dot_products<decltype(count)::value>(r, &keys[static_cast<std::size_t>(t)], chunk * kChunk + t);
        });
      }
      for (int n = 0; n < kKeys; ++n) ahead.ask_for_one();
    }
  }

  /// Of kRows rows with the kKeys keys from key j on.
  template <int kRows>
  HWY_INLINE void dot_products(std::int64_t r, const Raw* const* keys, std::int64_t j) const {
    const float* HWY_RESTRICT q = scratch_.q + r * k_.padded;
    V32 sum[kRows][kKeys];
    HWY_UNROLL(4)
    for (int a = 0; a < kRows; ++a) {
      HWY_UNROLL(4)
      for (int t = 0; t < kKeys; ++t) sum[a][t] = hn::Zero(kF32);
    }
    for (std::int64_t d = 0; d < k_.padded; d += kStep) {
      V32 query[kRows][Rows::kVectors];
      HWY_UNROLL(4)
      for (int a = 0; a < kRows; ++a) {
        HWY_UNROLL(2)
        for (int n = 0; n < Rows::kVectors; ++n) {
          query[a][n] = hn::Load(kF32, q + a * k_.padded + d + n * kLanes);
        }
      }
      HWY_UNROLL(4)
      for (int t = 0; t < kKeys; ++t) {
        V32 key[Rows::kVectors];
        Rows::load(keys[t] + d, key);
        HWY_UNROLL(2)
        for (int n = 0; n < Rows::kVectors; ++n) {
          HWY_UNROLL(4)
          for (int a = 0; a < kRows; ++a) sum[a][t] = hn::MulAdd(query[a][n], key[n], sum[a][t]);
        }
      }
    }
    HWY_UNROLL(4)
    for (int a = 0; a < kRows; ++a) store_sums_of_four(sum[a], scores(r + a) + j);
  }

  /// Raw dot products of row r become the scores of spec section 2, for keys [begin, end) of the tile.
  void finish_scores(std::int64_t r, std::int64_t key_begin, std::int64_t begin, std::int64_t end) const {
    const ScoreTransform transform(problem_, rule_of(r));
    const std::int64_t i = query_of(r), h = head_of(r), b = item_.sequence.batch_idx;
    const float slope = problem_.has_alibi ? per_head_value(context_.args.alibi_slopes, b, h) : 0.0f;
    const auto position = static_cast<float>(i + item_.sequence.diagonal() - key_begin - begin);
    const V32 minus_position = hn::Sub(hn::Iota(kF32, 0.0f), hn::Set(kF32, position));
    if (problem_.has_bias) {
      const TensorView& bias = context_.args.bias;
      const std::int64_t offset = bias_row_offset(bias, b, h, i) + (key_begin + begin) * bias.strides[3];
      with_format(problem_.bias_dtype, [&]<class Format>(Format) {
        const auto* data = static_cast<const typename Format::Raw*>(bias.data);
        load_row<Format>(data + offset, bias.strides[3], end - begin, scratch_.bias);
      });
    }
    for (std::int64_t j = 0; j < end - begin; j += kLanes) {
      float* s = scores(r) + begin + j;
      V32 score = transform.scale_and_cap(hn::LoadU(kF32, s));
      if (problem_.has_alibi) {
        const V32 distance = hn::Abs(hn::Add(minus_position, hn::Set(kF32, static_cast<float>(j))));
        score = hn::NegMulAdd(hn::Set(kF32, slope), distance, score);
      }
      if (problem_.has_bias) score = hn::Add(score, hn::Load(kF32, scratch_.bias + j));
      store_first(score, end - begin - j, s);
    }
  }

  /// Stores the first `count` lanes (all, if there are not so many).
  static HWY_INLINE void store_first(V32 value, std::int64_t count, float* p) {
    if (count >= kLanes) return hn::StoreU(value, kF32, p);
    hn::BlendedStore(value, hn::FirstN(kF32, static_cast<std::size_t>(count)), kF32, p);
  }

  /// Scores of row r become p; row_max, row_sum and rescale follow.
  void softmax(std::int64_t r, std::int64_t begin, std::int64_t end) const {
    float* s = scores(r);
    const V32 minus_infinity = hn::Set(kF32, -kInfinity);
    const auto load = [&](std::int64_t j) {
      const V32 x = hn::LoadU(kF32, s + j);
      if (end - j >= kLanes) return x;
      return hn::IfThenElse(hn::FirstN(kF32, static_cast<std::size_t>(end - j)), x, minus_infinity);
    };
    V32 top = hn::Set(kF32, scratch_.row_max[r]);
    for (std::int64_t j = begin; j < end; j += kLanes) top = hn::Max(top, load(j));
    const V32 new_max = hn::MaxOfLanes(kF32, top);
    // A row that has seen no key yet has maximum -inf; 0 in its place keeps -inf - (-inf) from occurring.
    const V32 subtrahend = hn::IfThenZeroElse(hn::Eq(new_max, minus_infinity), new_max);
    const V32 exponent_scale = hn::Set(kF32, rule_of(r).exponent_scale);
    V32 sum = hn::Zero(kF32);
    for (std::int64_t j = begin; j < end; j += kLanes) {
      const V32 p = exp2_nonpositive(hn::Mul(hn::Sub(load(j), subtrahend), exponent_scale));
      sum = hn::Add(sum, p);
      store_first(p, end - j, s + j);
    }
    const V32 old_max = hn::Set(kF32, scratch_.row_max[r]);
    const float rescale =
        hn::GetLane(exp2_nonpositive(hn::Mul(hn::Sub(old_max, subtrahend), exponent_scale)));
    scratch_.rescale[r] = rescale;
    scratch_.row_max[r] = hn::GetLane(new_max);
    scratch_.row_sum[r] = scratch_.row_sum[r] * rescale + hn::GetLane(hn::SumOfLanes(kF32, sum));
  }

  /// tile_sum += sum of p v over a chunk, for the rows of head h.
  void weigh_chunk(const KeyTile& tile, const KeyTile& next, const RowGroups& groups, std::int64_t chunk,
                   std::int64_t h) const {
    const ChunkRows values = rows_of(v_, tile.v_offsets, tile.keys, chunk, h);
    multiply_by_page_factors(v_, context_.args.v_descale, tile, chunk, h);
    Ahead ahead = ahead_of(tile, next, false, chunk, h);
    for (const RowGroup& group : groups.list()) {
      const KeyRange keys = KeyTile::chunk_keys(chunk, group.keys);
      if (keys.begin >= keys.end) continue;
      const bool is_first = keys.begin == group.keys.begin;
      for (std::int64_t r = group.row_begin; r < group.row_end;) {
        r += for_row_count(group.row_end - r, [&](auto count) {
          weigh_values<decltype(count)::value>(h * num_rows_ + r, keys, chunk * kChunk, values, is_first,
                                               ahead);
        });
      }
    }
    ahead.ask_for_rest();
  }

  template <int kRows>
  HWY_INLINE void weigh_values(std::int64_t r, KeyRange keys, std::int64_t chunk_begin,
                               const ChunkRows& values, bool is_first, Ahead& ahead) const {
    constexpr int kSteps = 4 / Rows::kVectors;
    std::int64_t d = 0;
    for (; d + kSteps * kStep <= v_.padded; d += kSteps * kStep) {
      weigh_columns<kRows, kSteps>(r, d, keys, chunk_begin, values, is_first);
      ahead.ask_for_one();
    }
    for (; d < v_.padded; d += kStep) weigh_columns<kRows, 1>(r, d, keys, chunk_begin, values, is_first);
  }

  template <int kRows, int kSteps>
  HWY_INLINE void weigh_columns(std::int64_t r, std::int64_t d, KeyRange keys, std::int64_t chunk_begin,
                                const ChunkRows& values, bool is_first) const {
    constexpr int kColumns = kSteps * Rows::kVectors;
    const float* HWY_RESTRICT p = scores(r);
    float* HWY_RESTRICT total = tile_sum(r) + d;
    V32 sum[kRows][kColumns];
    HWY_UNROLL(4)
    for (int a = 0; a < kRows; ++a) {
      HWY_UNROLL(4)
      for (int t = 0; t < kColumns; ++t) {
        sum[a][t] = is_first ? hn::Zero(kF32) : hn::Load(kF32, total + a * v_.padded + t * kLanes);
      }
    }
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const Raw* row = values[static_cast<std::size_t>(j - chunk_begin)] + d;
      V32 value[kColumns];
      HWY_UNROLL(4)
      for (int t = 0; t < kSteps; ++t) Rows::load(row + t * kStep, value + t * Rows::kVectors);
      HWY_UNROLL(4)
      for (int a = 0; a < kRows; ++a) {
        const V32 weight = hn::Set(kF32, p[a * kScoreStride + j]);
        HWY_UNROLL(4)
        for (int t = 0; t < kColumns; ++t) sum[a][t] = hn::MulAdd(weight, value[t], sum[a][t]);
      }
    }
    HWY_UNROLL(4)
    for (int a = 0; a < kRows; ++a) {
      HWY_UNROLL(4)
      for (int t = 0; t < kColumns; ++t) hn::Store(sum[a][t], kF32, total + a * v_.padded + t * kLanes);
    }
  }

  /// out = rescale * out + tile_sum.
  void add_tile_sum(std::int64_t r) const {
    const V32 rescale = hn::Set(kF32, scratch_.rescale[r]);
    for (std::int64_t d = 0; d < v_.padded; d += kLanes) {
      const V32 sum = hn::Load(kF32, tile_sum(r) + d);
      hn::Store(hn::MulAdd(hn::Load(kF32, out(r) + d), rescale, sum), kF32, out(r) + d);
    }
  }

  const ForwardContext& context_;
  const AttentionProblem& problem_;
  const WorkItem& item_;
  const Scratch& scratch_;
  const std::int64_t group_, num_rows_;  // of a head
  const Operand k_, v_;
  std::int64_t chunks_ahead_;
  std::array<ScoreRule, kMostItemRows> rules_;  // of each head
};

}  // namespace

void decode_item(const ForwardContext& context, const WorkItem& item, const Scratch& scratch) {
  switch (context.problem.kv_dtype) {
    case DType::BF16: return DecodeItem<Bf16Pairs>(context, item, scratch).run();
    case DType::F16: return DecodeItem<InOrder<LoadF16>>(context, item, scratch).run();
    default: return DecodeItem<InOrder<LoadF32>>(context, item, scratch).run();
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();
