// A random call of append_kv, and what must be in the cache afterwards by plain loops in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "onepass/append_kv.h"
#include "support/float_types.h"
#include "verify/host_tensor.h"
#include "verify/random.h"

namespace onepass {

struct AppendKind {
  DType dtype = DType::BF16;
  bool in_pieces = true;  // every row can be read and written 16 bytes at a time
  bool misfits = false;   // some sequences do not fit
  DType stored = dtype;   // in the cache
};

/// The value of an 8-bit dtype that is nearest to x, of two the one whose bits are even, by trying them all.
inline double nearest_byte(DType dtype, double x) {
  if (std::isnan(x)) return dtype == DType::I8 ? 0 : x;
  double best = 0, best_distance = std::numeric_limits<double>::infinity();
  const double kept = std::clamp(x, -1e6, 1e6);  // past every type, and exact distances
  bool best_is_even = false;
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    const double value = load_float(&byte, dtype, 0), distance = std::abs(value - kept);
    if (!std::isfinite(value)) continue;
    if (distance < best_distance || (distance == best_distance && !best_is_even)) {
      best = value;
      best_distance = distance;
      best_is_even = bits % 2 == 0;
    }
  }
  return best;
}

class AppendCase {
 public:
  AppendArguments args;
  AppendOptions options;

  AppendCase(std::int64_t seed, AppendKind kind) : kind_(kind), random_({seed, 77}) {
    num_heads_k_ = 1 + random_.below(3);
    num_heads_q_ = num_heads_k_ * (1 + random_.below(3));
    head_dim_ = kind.in_pieces ? 16 * (1 + random_.below(4)) : 1 + random_.below(40);
    head_dim_v_ = kind.in_pieces ? 8 * (1 + random_.below(6)) : 1 + random_.below(40);
    batch_ = 1 + random_.below(5);
    make_lengths();
    make_new_rows();
    make_cache();
    if (quantizes()) make_factors();
    if (random_.chance(70)) make_rotary();
    if (random_.chance(60)) args.seqlens_out = keep_ints(std::vector<std::int32_t>(batch(), -7));
    if (kind.misfits) args.overflow = keep_ints(std::vector<std::int32_t>(batch(), 0));
  }

  /// The tensors that are there: for copies to a GPU.
  std::vector<TensorView*> views() {
    std::vector<TensorView*> present;
    for (TensorView* view :
         {&args.k_new, &args.v_new, &args.k_cache, &args.v_cache, &args.cu_seqlens_new, &args.seqused_new,
          &args.cache_seqlens, &args.block_table, &args.cache_batch_idx, &args.rotary_cos, &args.rotary_sin,
          &args.rotary_positions, &args.q, &args.q_out, &args.cu_seqlens_q, &args.seqlens_out, &args.overflow,
          &args.k_descale, &args.v_descale}) {
      if (view->present()) present.push_back(view);
    }
    return present;
  }

  std::int64_t num_misfits() const {
    std::int64_t count = 0;
    for (std::size_t b = 0; b < batch(); ++b) count += fits(b) ? 0 : 1;
    return count;
  }

  /// Call it with the views of host memory.
  void expect_right() const {
    std::vector<double> k = poison(*k_cache_), v = poison(*v_cache_);
    std::vector<double> q = q_out_ != nullptr ? poison(*q_out_) : std::vector<double>();
    for (std::size_t b = 0; b < batch(); ++b) {
      if (!fits(b)) continue;
      for (std::int64_t t = 0; t < added_[b]; ++t) {
        for (std::int64_t h = 0; h < num_heads_k_; ++h) {
          const std::vector<std::int64_t> at = cache_index(b, t, h), from = row_index(new_begin_, b, t, h);
          put(k, *k_cache_, at, turned(args.k_new, from, angle_at(b, t)));
          put(v, *v_cache_, at, plain(args.v_new, from));
          if (!quantizes()) continue;
          expect_quantized("k_cache", *k_cache_, at, turned(args.k_new, from, angle_at(b, t)),
                           factor(args.k_descale, b, at), angle_at(b, t) < 0 ? 0 : 2 * num_pairs());
          expect_quantized("v_cache", *v_cache_, at, plain(args.v_new, from), factor(args.v_descale, b, at),
                           0);
        }
      }
      for (std::int64_t t = 0; t < queries_[b]; ++t) {
        for (std::int64_t h = 0; h < num_heads_q_; ++h) {
          const std::vector<std::int64_t> at = row_index(q_begin_, b, t, h);
          put(q, *q_out_, at, turned(args.q, at, angle_at(b, options.q_at_first_position ? 0 : t)));
        }
      }
    }
    compare("k_cache", *k_cache_, k);
    compare("v_cache", *v_cache_, v);
    if (q_out_ != nullptr) compare("q_out", *q_out_, q);
    for (std::size_t b = 0; b < batch(); ++b) {
      if (args.seqlens_out.present()) {
        EXPECT_EQ(ints(args.seqlens_out)[b], cached_[b] + (fits(b) ? added_[b] : 0)) << "sequence " << b;
      }
      // What has no rows has no block that looks at it, unless lengths are stored.
      const bool looked_at = args.seqlens_out.present() || room_[b] > 0 || queries_[b] > 0;
      if (args.overflow.present() && looked_at) {
        EXPECT_EQ(ints(args.overflow)[b], fits(b) ? 0 : 1) << "sequence " << b;
      }
    }
    for (const verify::HostTensor& tensor : memory_) EXPECT_TRUE(tensor.memory().guards_intact());
  }

 private:
  std::size_t batch() const { return static_cast<std::size_t>(batch_); }
  static std::int32_t* ints(const TensorView& view) { return static_cast<std::int32_t*>(view.data); }

  TensorView keep(verify::HostTensor tensor) {
    memory_.push_back(std::move(tensor));
    return memory_.back().view();
  }
  TensorView keep_ints(const std::vector<std::int32_t>& values) {
    const TensorView view = keep(verify::HostTensor(DType::I32, {static_cast<std::int64_t>(values.size())}));
    std::copy(values.begin(), values.end(), ints(view));
    return view;
  }
  auto noise() {
    return [this](std::span<const std::int64_t>) { return random_.normal(); };
  }
  bool quantizes() const { return kind_.stored != kind_.dtype; }
  std::int64_t num_pairs() const { return args.rotary_cos.present() ? args.rotary_cos.shape[1] : 0; }
  bool misfit() { return kind_.misfits && random_.chance(20); }

  void make_lengths() {
    page_size_ = 1 + random_.below(random_.chance(50) ? 4 : 20);
    paged_ = random_.chance(60);
    const std::int64_t max_pages = 1 + random_.below(6);
    capacity_ = paged_ ? page_size_ * max_pages : 1 + random_.below(60);
    for (std::int64_t b = 0; b < batch_; ++b) {
      const std::int64_t added =
          random_.chance(20) ? 0 : random_.below(std::min<std::int64_t>(capacity_, 12) + 1);
      const std::int64_t cached = random_.below(capacity_ - added + 1);
      added_.push_back(added);
      cached_.push_back(misfit() ? (random_.chance(50) ? capacity_ - added + 1 : -1) : cached);
    }
    if (random_.chance(80) || kind_.misfits) {
      args.cache_seqlens = keep_ints({cached_.begin(), cached_.end()});
    } else {
      std::fill(cached_.begin(), cached_.end(), 0);
    }
  }

  void make_new_rows() {
    // Keys and values are parts of one projection, as models make them.
    const std::int64_t row = num_heads_k_ * (head_dim_ + head_dim_v_) + (kind_.in_pieces ? 8 : 3);
    room_ = added_;
    std::int64_t total = 0;
    if (random_.chance(50)) {  // packed, with rows of nobody at both ends
      total = random_.below(3);
      std::vector<std::int32_t> offsets;
      for (std::size_t b = 0; b < batch(); ++b) {
        if (random_.chance(30)) room_[b] += 2, use_added_ = true;
        new_begin_.push_back(total);
        offsets.push_back(static_cast<std::int32_t>(total));
        total += room_[b];
      }
      offsets.push_back(static_cast<std::int32_t>(total));
      total += random_.below(3);
      args.cu_seqlens_new = keep_ints(offsets);
      const TensorView all = keep(verify::HostTensor(kind_.dtype, {total, row}, noise()));
      args.k_new = view(all.data, {total, num_heads_k_, head_dim_}, {row, head_dim_, 1});
      args.v_new = view(part(all, num_heads_k_ * head_dim_), {total, num_heads_k_, head_dim_v_},
                        {row, head_dim_v_, 1});
    } else {
      const std::int64_t most = *std::max_element(added_.begin(), added_.end());
      std::fill(room_.begin(), room_.end(), most);
      use_added_ = true;
      const TensorView all = keep(verify::HostTensor(kind_.dtype, {batch_, most, row}, noise()));
      args.k_new = view(all.data, {batch_, most, num_heads_k_, head_dim_}, {most * row, row, head_dim_, 1});
      args.v_new = view(part(all, num_heads_k_ * head_dim_), {batch_, most, num_heads_k_, head_dim_v_},
                        {most * row, row, head_dim_v_, 1});
    }
    if (use_added_) args.seqused_new = keep_ints({added_.begin(), added_.end()});
  }
  TensorView view(const void* data, const std::vector<std::int64_t>& shape,
                  const std::vector<std::int64_t>& strides) const {
    return make_view(data, kind_.dtype, shape, strides);
  }
  static void* part(const TensorView& view, std::int64_t elements) {
    return static_cast<char*>(view.data) + elements * dtype_bytes(view.dtype);
  }

  void make_cache() {
    std::int64_t first = batch_, second = capacity_;
    if (paged_) {
      const std::int64_t max_pages = capacity_ / page_size_;
      first = batch_ * max_pages + 2;
      second = page_size_;
      std::vector<std::int32_t> pages(static_cast<std::size_t>(first));
      for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i);
      for (std::size_t i = pages.size() - 1; i > 0; --i) {
        std::swap(pages[i], pages[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(i) + 1))]);
      }
      pages.resize(static_cast<std::size_t>(batch_ * max_pages));
      for (std::size_t b = 0; b < batch(); ++b) {
        for (std::int64_t column = 0; column < max_pages; ++column) {
          const bool needed =
              column >= cached_[b] / page_size_ && column * page_size_ < cached_[b] + added_[b];
          auto& page = pages[b * static_cast<std::size_t>(max_pages) + static_cast<std::size_t>(column)];
          if (!needed || misfit()) page = random_.chance(50) ? -1 : 1 << 30;  // nobody may look there
        }
      }
      args.block_table = keep_ints(pages);
      args.block_table = make_view(args.block_table.data, DType::I32, {batch_, max_pages});
    } else if (random_.chance(50)) {
      first = batch_ + 2;
      for (std::int64_t b = 0; b < batch_; ++b) {
        batch_idx_.push_back(static_cast<std::int32_t>(misfit() ? first : first - 1 - b));
      }
      args.cache_batch_idx = keep_ints(batch_idx_);
    }
    args.k_cache = keep(verify::HostTensor(kind_.stored, {first, second, num_heads_k_, head_dim_}));
    k_cache_ = &memory_.back();
    args.v_cache = keep(verify::HostTensor(kind_.stored, {first, second, num_heads_k_, head_dim_v_}));
    v_cache_ = &memory_.back();
  }

  /// Down to what saturates, of K and of V in shapes of their own.
  void make_factors() {
    for (TensorView* view : {&args.k_descale, &args.v_descale}) {
      const std::vector<std::vector<std::int64_t>> shapes = {{1},
                                                             {num_heads_k_},
                                                             {batch_, num_heads_k_},
                                                             {args.k_cache.shape[0], 1, num_heads_k_},
                                                             {args.k_cache.shape[0], 1, 1}};
      const std::int64_t choice = random_.below(paged_ ? 6 : 4);
      if (choice == 3) continue;  // absent
      const auto& shape = shapes[static_cast<std::size_t>(choice > 3 ? choice - 1 : choice)];
      const auto factors = [this](std::span<const std::int64_t>) {
        return std::ldexp(0.5 + random_.uniform(), static_cast<int>(-random_.below(10)));
      };
      *view = keep(verify::HostTensor(DType::F32, shape, factors));
    }
  }
  float factor(const TensorView& descale, std::size_t b, const std::vector<std::int64_t>& at) const {
    if (!descale.present()) return 1;
    const auto* x = static_cast<const float*>(descale.data);
    const std::int64_t heads = descale.shape[static_cast<std::size_t>(descale.rank - 1)];
    const std::int64_t head = heads == 1 ? 0 : at[2];
    const std::int64_t outer = descale.rank == 3   ? at[0]
                               : descale.rank == 2 ? static_cast<std::int64_t>(b)
                                                   : 0;
    return x[outer * heads + head];
  }

  /// A row of the cache: bit for bit, but where elements turned, whose f32 products may differ in their last
  /// bits.
  void expect_quantized(const char* name, const verify::HostTensor& cache,
                        const std::vector<std::int64_t>& at, const std::vector<double>& row, float factor,
                        std::int64_t num_turned) const {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < at.size(); ++i) offset += at[i] * cache.view().strides[i];
    for (std::size_t d = 0; d < row.size(); ++d) {
      const float got = load_float(cache.view().data, kind_.stored, offset + static_cast<std::int64_t>(d));
      if (static_cast<std::int64_t>(d) >= num_turned) {
        const auto quotient = static_cast<float>(row[d] / static_cast<double>(factor));
        ASSERT_EQ(got, nearest_byte(kind_.stored, static_cast<double>(quotient)))
            << name << " element " << d << ", " << row[d] << " / " << factor;
      } else {
        ASSERT_GE(got, nearest_byte(kind_.stored, (row[d] - 2e-5) / static_cast<double>(factor)))
            << name << d;
        ASSERT_LE(got, nearest_byte(kind_.stored, (row[d] + 2e-5) / static_cast<double>(factor)))
            << name << d;
      }
    }
  }

  void make_rotary() {
    const std::int64_t pairs =
        kind_.in_pieces ? 8 * (1 + random_.below(head_dim_ / 16)) : random_.below(head_dim_ / 2 + 1);
    const std::int64_t positions = capacity_ + 20;
    const DType dtype = random_.chance(50) ? DType::F32 : kind_.dtype;
    args.rotary_cos = keep(verify::HostTensor(dtype, {positions, pairs}, noise()));
    args.rotary_sin = keep(verify::HostTensor(dtype, {positions, pairs}, noise()));
    options.rotary_interleaved = random_.chance(50);
    options.q_at_first_position = random_.chance(30);
    if (random_.chance(30)) {
      for (std::int64_t b = 0; b < batch_; ++b) {
        position_.push_back(static_cast<std::int32_t>(misfit() ? positions : random_.below(5)));
      }
      args.rotary_positions = keep_ints(position_);
    }
    queries_.assign(batch(), 0);
    if (random_.chance(60)) make_queries();
  }

  void make_queries() {
    for (std::int64_t& rows : queries_) rows = random_.below(8);
    if (random_.chance(50)) {
      std::vector<std::int32_t> offsets;
      std::int64_t total = 1;
      for (const std::int64_t rows : queries_) {
        q_begin_.push_back(total);
        offsets.push_back(static_cast<std::int32_t>(total));
        total += rows;
      }
      offsets.push_back(static_cast<std::int32_t>(total++));
      args.cu_seqlens_q = keep_ints(offsets);
      args.q = keep(verify::HostTensor(kind_.dtype, {total, num_heads_q_, head_dim_}, noise()));
      args.q_out = keep(verify::HostTensor(kind_.dtype, {total, num_heads_q_, head_dim_}));
    } else {
      queries_.assign(batch(), queries_.front());
      args.q =
          keep(verify::HostTensor(kind_.dtype, {batch_, queries_.front(), num_heads_q_, head_dim_}, noise()));
      args.q_out = keep(verify::HostTensor(kind_.dtype, {batch_, queries_.front(), num_heads_q_, head_dim_}));
    }
    q_out_ = &memory_.back();
  }

  // ---- by plain loops

  std::int64_t first_position(std::size_t b) const { return position_.empty() ? cached_[b] : position_[b]; }
  /// -1 where nothing turns.
  std::int64_t angle_at(std::size_t b, std::int64_t t) const {
    return args.rotary_cos.present() ? first_position(b) + t : -1;
  }

  bool fits(std::size_t b) const {
    if (cached_[b] < 0 || cached_[b] + added_[b] > capacity_) return false;
    if (args.rotary_cos.present() && args.rotary_cos.shape[1] > 0) {
      const std::int64_t queries =
          options.q_at_first_position ? std::min<std::int64_t>(queries_[b], 1) : queries_[b];
      const std::int64_t turned = std::max(added_[b], queries);
      if (turned > 0 && first_position(b) + turned > args.rotary_cos.shape[0]) return false;
    }
    if (added_[b] > 0 && !batch_idx_.empty() && batch_idx_[b] >= args.k_cache.shape[0]) return false;
    for (std::int64_t t = 0; paged_ && t < added_[b]; ++t) {
      const std::int64_t page = page_of(b, cached_[b] + t);
      if (page < 0 || page >= args.k_cache.shape[0]) return false;
    }
    return true;
  }

  std::int64_t page_of(std::size_t b, std::int64_t token) const {
    return ints(
        args.block_table)[static_cast<std::int64_t>(b) * args.block_table.shape[1] + token / page_size_];
  }

  std::vector<std::int64_t> cache_index(std::size_t b, std::int64_t t, std::int64_t h) const {
    const std::int64_t token = cached_[b] + t;
    if (paged_) return {page_of(b, token), token % page_size_, h};
    return {batch_idx_.empty() ? static_cast<std::int64_t>(b) : batch_idx_[b], token, h};
  }
  static std::vector<std::int64_t> row_index(const std::vector<std::int64_t>& begins, std::size_t b,
                                             std::int64_t t, std::int64_t h) {
    if (begins.empty()) return {static_cast<std::int64_t>(b), t, h};
    return {begins[b] + t, h};
  }

  static std::vector<double> plain(const TensorView& view, const std::vector<std::int64_t>& at) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < at.size(); ++i) offset += at[i] * view.strides[i];
    std::vector<double> row;
    for (std::int64_t d = 0; d < view.shape[at.size()]; ++d) {
      row.push_back(load_float(view.data, view.dtype, offset + d * view.strides[at.size()]));
    }
    return row;
  }

  std::vector<double> turned(const TensorView& view, const std::vector<std::int64_t>& at,
                             std::int64_t position) const {
    const std::vector<double> x = plain(view, at);
    std::vector<double> y = x;
    if (position < 0) return y;
    const auto pairs = static_cast<std::size_t>(args.rotary_cos.shape[1]);
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::size_t a = options.rotary_interleaved ? 2 * i : i;
      const std::size_t b = options.rotary_interleaved ? 2 * i + 1 : i + pairs;
      const std::int64_t n = position * args.rotary_cos.shape[1] + static_cast<std::int64_t>(i);
      const double cos = load_float(args.rotary_cos.data, args.rotary_cos.dtype, n);
      const double sin = load_float(args.rotary_sin.data, args.rotary_sin.dtype, n);
      y[a] = x[a] * cos - x[b] * sin;
      y[b] = x[a] * sin + x[b] * cos;
    }
    return y;
  }

  static std::vector<double> poison(const verify::HostTensor& tensor) {
    return std::vector<double>(static_cast<std::size_t>(tensor.view().num_elements()), std::nan(""));
  }
  static void put(std::vector<double>& all, const verify::HostTensor& tensor,
                  const std::vector<std::int64_t>& at, const std::vector<double>& row) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < at.size(); ++i) offset += at[i] * tensor.view().strides[i];
    std::copy(row.begin(), row.end(), all.begin() + offset);
  }

  void compare(const char* name, const verify::HostTensor& tensor, const std::vector<double>& want) const {
    // One rounding, and the error of f32 products that may cancel; noise keeps within 10.
    const double rounding = kind_.dtype == DType::F32   ? 0x1p-24
                            : kind_.dtype == DType::F16 ? 0x1p-11
                                                        : 0x1p-8;
    const DType dtype = tensor.view().dtype;
    const auto bytes = static_cast<std::size_t>(dtype_bytes(dtype));
    for (std::size_t n = 0; n < want.size(); ++n) {
      const unsigned char* at = tensor.memory().bytes() + n * bytes;
      if (std::isnan(want[n])) {
        ASSERT_TRUE(std::all_of(at, at + bytes, [](unsigned char c) { return c == verify::kPoison; }))
            << name << " element " << n << " was written";
        continue;
      }
      if (bytes == 1) continue;  // expect_quantized has looked
      const float got = load_float(tensor.view().data, dtype, static_cast<std::int64_t>(n));
      ASSERT_NEAR(got, want[n], 1.01 * rounding * std::abs(want[n]) + 2e-5) << name << " element " << n;
    }
  }

  AppendKind kind_;
  verify::Random random_;
  std::int64_t num_heads_k_ = 0, num_heads_q_ = 0, head_dim_ = 0, head_dim_v_ = 0, batch_ = 0;
  std::int64_t page_size_ = 1, capacity_ = 0;
  bool paged_ = false, use_added_ = false;
  std::vector<std::int64_t> added_, cached_, room_, new_begin_, q_begin_;
  std::vector<std::int64_t> queries_ = std::vector<std::int64_t>(8, 0);
  std::vector<std::int32_t> batch_idx_, position_;
  std::deque<verify::HostTensor> memory_;
  const verify::HostTensor *k_cache_ = nullptr, *v_cache_ = nullptr, *q_out_ = nullptr;
};

}  // namespace onepass
