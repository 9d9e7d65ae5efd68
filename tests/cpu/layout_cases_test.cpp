// Inputs that broke other libraries' addressing: pages, caches, padding, strides, DLPack, head groups, head
// dims.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/cpu/call.h"
#include "tests/cpu/sizes.h"
#include "verify/case_tensors.h"

namespace onepass {
namespace {

/// A call with one sequence of `seqlen_k` tokens in pages; q = 0, v of token t = t + 1; everything unused is
/// NaN.
/// K and V are pools of their own, or the two halves of one pool [pages, 2, page, H, D].
Call paged_call(const Target& target, std::int64_t page, std::int64_t seqlen_q, std::int64_t seqlen_k,
                bool one_pool) {
  constexpr std::int64_t kHeadDim = 8;
  const std::int64_t used = (seqlen_k + page - 1) / page, pages = used + 7;
  Call call;
  call.args.q = call.keep(HostTensor(target.dtype, {1, seqlen_q, 2, kHeadDim}, constant(0)));
  HostTensor table(DType::I32, {1, used + 2});
  auto* entries = static_cast<std::int32_t*>(table.view().data);
  for (std::int64_t n = 0; n < used; ++n) entries[n] = static_cast<std::int32_t>(pages - 1 - n);
  if (page == 4 && seqlen_k == 10) entries[0] = 5, entries[1] = 2, entries[2] = 9;
  entries[used] = -1;
  entries[used + 1] = 1 << 30;

  HostTensor pool(target.dtype, {pages, 2, page, 1, kHeadDim}), k(target.dtype, {pages, page, 1, kHeadDim}),
      v(target.dtype, {pages, page, 1, kHeadDim});
  for (std::int64_t t = 0; t < seqlen_k; ++t) {
    const std::int64_t p = entries[t / page], slot = t % page;
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      const auto value = static_cast<float>(t + 1);
      k.set({p, slot, 0, d}, 0.5f);
      v.set({p, slot, 0, d}, value);
      pool.set({p, 0, slot, 0, d}, 0.5f);
      pool.set({p, 1, slot, 0, d}, value);
    }
  }
  if (one_pool) {
    const TensorView whole = call.keep(std::move(pool));
    const std::int64_t half = page * kHeadDim;
    const std::vector<std::int64_t> shape = {pages, page, 1, kHeadDim},
                                    strides = {2 * half, kHeadDim, kHeadDim, 1};
    call.args.k = make_view(whole.data, target.dtype, shape, strides);
    call.args.v = make_view(static_cast<char*>(whole.data) + half * dtype_bytes(target.dtype), target.dtype,
                            shape, strides);
  } else {
    call.args.k = call.keep(std::move(k));
    call.args.v = call.keep(std::move(v));
  }
  call.args.block_table = call.keep(std::move(table));
  HostTensor length(DType::I32, {1});
  static_cast<std::int32_t*>(length.view().data)[0] = static_cast<std::int32_t>(seqlen_k);
  call.args.seqused_k = call.keep(std::move(length));
  call.options.causal = Causal::BottomRight;
  return call;
}

TEST(layout_cases, r09_pages_of_any_size_in_two_pools_or_one) {
  on_every_target([](const Target& target) {
    for (const std::int64_t page : {4, 1, 3, 16, 64, 128, 256}) {
      for (const bool one_pool : {false, true}) {
        SCOPED_TRACE("page " + std::to_string(page) + (one_pool ? ", one pool" : ""));
        Call call = paged_call(target, page, 3, 10, one_pool);
        call.run(target);
        expect_rows(call, target, {4.5, 5.0, 5.5}, {2.079441542, 2.197224577, 2.302585093});
        paged_call(target, page, 70, 300, one_pool).run(target);
        Call decode = paged_call(target, page, 1, 257, one_pool);
        decode.run(target);
        EXPECT_NEAR(decode.out({0, 0, 1, 7}), 129, target.near(129));
      }
    }
  });
}

TEST(layout_cases, r19_a_cache_longer_than_the_sequences_in_it) {
  on_every_target([](const Target& target) {
    Call call;
    const std::int32_t lengths[] = {32, 64, 96, 48};
    const auto within = [&](double value) {
      return [&lengths, value](std::span<const std::int64_t> idx) {
        if (idx[1] >= lengths[idx[0]]) return static_cast<double>(kNan);
        return value < 0 ? static_cast<double>(idx[1] + 1) : value;
      };
    };
    call.args.q = call.keep(HostTensor(target.dtype, {4, 1, 8, 64}, constant(0)));
    call.args.k = call.keep(HostTensor(target.dtype, {4, 128, 8, 64}, within(0.5)));
    call.args.v = call.keep(HostTensor(target.dtype, {4, 128, 8, 64}, within(-1)));
    call.args.seqused_k = call.keep(HostTensor{32, 64, 96, 48});
    call.run(target);
    const double out[] = {16.5, 32.5, 48.5, 24.5};
    for (std::int64_t b = 0; b < 4; ++b) {
      for (std::int64_t h = 0; h < 8; ++h) EXPECT_NEAR(call.out({b, 0, h, 63}), out[b], target.near(out[b]));
    }
  });
}

/// Packed q, k, v with NaN in the rows that belong to no sequence.
Call padded_call(const Target& target, std::int64_t rows, std::int64_t heads,
                 std::initializer_list<std::int32_t> cu_seqlens,
                 std::initializer_list<std::int64_t> padding) {
  Call call;
  for (auto [view, seed] : {std::pair{&call.args.q, 1}, {&call.args.k, 2}, {&call.args.v, 3}}) {
    HostTensor t(target.dtype, {rows, heads, 64}, noise(seed));
    for (const std::int64_t row : padding) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < 64; ++d) t.set({row, h, d}, kNan);
      }
    }
    *view = call.keep(std::move(t));
  }
  call.args.cu_seqlens_q = call.args.cu_seqlens_k = call.keep(HostTensor(cu_seqlens));
  call.options.causal = Causal::BottomRight;
  return call;
}

void expect_nothing(const Call& call, std::int64_t row) {
  for (std::int64_t h = 0; h < call.args.out.shape[1]; ++h) {
    EXPECT_EQ(call.lse({h, row}), -kInf) << row;
    for (std::int64_t d = 0; d < 64; ++d) EXPECT_EQ(call.out({row, h, d}), 0.0f) << row;
  }
}

TEST(layout_cases, r24_padding_rows_of_packed_buffers_get_zero_and_rows_inside_do_not_notice) {
  on_every_target([](const Target& target) {
    Call tail = padded_call(target, 946, full_or_sanitized(16, 2), {0, 144, 432, 944}, {944, 945});
    tail.run(target);
    expect_nothing(tail, 944);
    expect_nothing(tail, 945);

    // Sequences of 3 and 5 rows placed at rows 0 and 4 of 16.
    Call apart = padded_call(target, 16, 2, {0, 4, 12}, {3, 9, 10, 11, 12, 13, 14, 15});
    apart.args.seqused_q = apart.args.seqused_k = apart.keep(HostTensor{3, 5});
    apart.run(target);
    for (const std::int64_t row : {3, 9, 10, 11, 12, 13, 14, 15}) expect_nothing(apart, row);

    Call together;
    for (auto [to, from] : {std::pair{&together.args.q, apart.args.q},
                            {&together.args.k, apart.args.k},
                            {&together.args.v, apart.args.v}}) {
      *to = together.keep(HostTensor(target.dtype, {8, 2, 64}, [source = from](auto idx) {
        return Call::element(source, {idx[0] < 3 ? idx[0] : idx[0] + 1, idx[1], idx[2]});
      }));
    }
    together.args.cu_seqlens_q = together.args.cu_seqlens_k = together.keep(HostTensor{0, 3, 8});
    together.options = apart.options;
    together.run(target);
    for (std::int64_t row = 0; row < 8; ++row) {
      const std::int64_t placed = row < 3 ? row : row + 1;
      for (std::int64_t h = 0; h < 2; ++h) {
        EXPECT_EQ(together.lse({h, row}), apart.lse({h, placed})) << row;
        for (std::int64_t d = 0; d < 64; ++d)
          EXPECT_EQ(together.out({row, h, d}), apart.out({placed, h, d})) << row;
      }
    }
  });
}

TEST(layout_cases, r25_five_memory_orders_of_one_set_of_values_give_equal_bits) {
  on_every_target([](const Target& target) {
    constexpr std::int64_t kHeads = full_or_sanitized(16, 2), kLength = 62, kDim = 128;
    const auto values = [](std::span<const std::int64_t> idx) {
      return static_cast<double>(idx[2]) + static_cast<double>(idx[1]) / 64;
    };
    const auto place = [&](Call& call, std::vector<std::int64_t> strides, std::int64_t elements, auto f) {
      HostTensor t(
          make_view(nullptr, target.dtype, std::vector<std::int64_t>{1, kLength, kHeads, kDim}, strides),
          elements);
      t.fill(f);
      return call.keep(std::move(t));
    };
    const std::int64_t row = kHeads * kDim, all = kLength * row;
    const std::vector<std::int64_t> dense = {all, row, kDim, 1}, every_second = {2 * all, 2 * row, kDim, 1},
                                    inner_two = {2 * all, 2 * row, 2 * kDim, 2},
                                    qkv = {3 * all, 3 * row, kDim, 1};
    const auto run = [&](const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& k,
                         const std::vector<std::int64_t>& v) {
      Call call;
      call.args.q = place(call, q, 3 * all, constant(0));
      call.args.k = place(call, k, 3 * all, noise(4));
      call.args.v = place(call, v, 3 * all, values);
      call.run(target);
      return call;
    };
    const Call a = run(dense, dense, dense);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const double want = static_cast<double>(h) + 61.0 / 128;
      EXPECT_NEAR(a.out({0, 0, h, 0}), want, 2 * target.near(want) + 1e-6);
      EXPECT_NEAR(a.out({0, 61, h, 127}), want, 2 * target.near(want) + 1e-6);
    }
    const auto expect_same = [&](const Call& other) {
      EXPECT_EQ(bytes_of(a.args.out), bytes_of(other.args.out));
      EXPECT_EQ(bytes_of(a.args.softmax_lse), bytes_of(other.args.softmax_lse));
    };
    expect_same(run(dense, every_second, dense));
    expect_same(run(dense, dense, every_second));
    if (target.on_gpu()) {
      EXPECT_THROW(run(inner_two, inner_two, inner_two), NotSupported);  // stride 1 only, never a silent copy
    } else {
      expect_same(run(inner_two, inner_two, inner_two));
    }
    expect_same(run(qkv, qkv, qkv));
  });
}

TEST(layout_cases, r25_key_heads_broadcast_with_stride_0) {
  on_every_target([](const Target& target) {
    constexpr std::int64_t kHeads = full_or_sanitized(16, 2);
    for (const std::int64_t seqlen_k : {33, 65}) {
      Call call;
      call.args.q = call.keep(HostTensor(target.dtype, {1, 62, kHeads, 128}, constant(0)));
      const auto broadcast = [&](auto f) {
        HostTensor t(make_view(nullptr, target.dtype, std::vector<std::int64_t>{1, seqlen_k, kHeads, 128},
                               std::vector<std::int64_t>{seqlen_k * 128, 128, 0, 1}),
                     seqlen_k * 128);
        t.fill(f);
        return call.keep(std::move(t));
      };
      call.args.k = broadcast(constant(0.5));
      call.args.v = broadcast([](auto idx) { return static_cast<double>(idx[1]) / 64; });
      call.run(target);
      const double want = static_cast<double>(seqlen_k - 1) / 128;
      for (std::int64_t h = 0; h < kHeads; ++h)
        EXPECT_NEAR(call.out({0, 61, h, 3}), want, target.near(want) + 1e-6);
    }
  });
}

// The fields of dlpack.h's DLTensor.
struct Dlpack {
  void* data;
  struct {
    std::int32_t device_type, device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

TEST(layout_cases, r28_dlpack_tensors_with_byte_offsets_null_strides_and_odd_strides_of_size_1_dims) {
  on_every_target([](const Target& target) {
    const auto bytes = static_cast<std::uint64_t>(dtype_bytes(target.dtype));
    const std::uint8_t code = target.dtype == DType::BF16 ? 4 : 2;  // kDLBfloat, kDLFloat
    Call dense;
    for (auto [view, seed] : {std::pair{&dense.args.q, 1}, {&dense.args.k, 2}, {&dense.args.v, 3}}) {
      *view = dense.keep(HostTensor(target.dtype, {1, 9, 1, 16}, noise(seed)));
    }
    dense.args.seqused_k = dense.keep(HostTensor{7});
    dense.run(target);

    for (const std::uint64_t offset : {2, 4, 6, 16, 32}) {
      std::int64_t shape[4] = {1, 9, 1, 16}, strides[4] = {7, 16, 7, 1}, index_shape[1] = {1};
      std::deque<std::vector<unsigned char>> memory;
      const auto shifted = [&](const TensorView& view, std::int64_t* with_strides) {
        memory.emplace_back(64 + bytes_of(view).size());
        const std::vector<unsigned char> values = bytes_of(view);
        std::memcpy(memory.back().data() + offset, values.data(), values.size());
        return Dlpack{memory.back().data(), {1, 0}, 4, {code, static_cast<std::uint8_t>(8 * bytes), 1}, shape,
                      with_strides,         offset};
      };
      Call call;
      if (offset % bytes != 0) {
        EXPECT_THROW(from_dlpack(shifted(dense.args.q, nullptr)), InvalidArgument) << offset;
        continue;
      }
      call.args.q = from_dlpack(shifted(dense.args.q, nullptr));
      call.args.k = from_dlpack(shifted(dense.args.k, strides));
      call.args.v = from_dlpack(shifted(dense.args.v, nullptr));
      std::int32_t lengths[2] = {-5, 7};
      call.args.seqused_k = from_dlpack(Dlpack{lengths, {1, 0}, 1, {0, 32, 1}, index_shape, nullptr, 4});
      call.run(target);
      EXPECT_EQ(bytes_of(call.args.out), bytes_of(dense.args.out)) << offset;
      EXPECT_EQ(bytes_of(call.args.softmax_lse), bytes_of(dense.args.softmax_lse)) << offset;
    }
  });
}

TEST(layout_cases, r34_query_heads_read_the_key_head_of_their_group) {
  on_every_target([](const Target& target) {
    const std::vector<std::pair<std::int64_t, std::int64_t>> heads = {
        {5, 1}, {6, 1}, {7, 1}, {40, 8}, {24, 4}, {28, 4}, {56, 8}, {48, 3}, {64, 1}, {71, 1}};
    for (const auto& [hq, hk] : heads) {
      for (const auto& [seqlen_q, seqlen_k] :
           std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 70}, {17, 33}}) {
        Call call = uniform_call(target, {.seqlen_q = seqlen_q,
                                          .seqlen_k = seqlen_k,
                                          .num_heads_q = hq,
                                          .num_heads_k = hk,
                                          .head_dim = 16});
        call.args.v = call.keep(HostTensor(target.dtype, {1, seqlen_k, hk, 16}, row_number(2)));
        call.run(target);
        for (std::int64_t h = 0; h < hq; ++h) {
          const std::int64_t group = h * hk / hq;
          const auto want = static_cast<float>(group + 1);
          for (std::int64_t i = 0; i < seqlen_q; ++i) {
            EXPECT_NEAR(call.out({0, i, h, 15}), want, target.near(want)) << hq << "/" << hk;
          }
        }
      }
    }
  });
}

/// Every head dim with every length on either side.
void run_head_dims(DType dtype) {
  if (targets({dtype}).empty()) GTEST_SKIP() << no_target_reason();
  const std::vector<std::pair<int, int>> dims = {
      {1, 1},    {8, 8},     {40, 40},   {56, 56},   {63, 63},   {72, 72},   {80, 80},
      {96, 96},  {120, 120}, {192, 192}, {256, 256}, {320, 320}, {512, 512}, {576, 576},
      {128, 96}, {64, 128},  {192, 128}, {256, 192}, {576, 512}, {128, 8},   {32, 64}};
  const std::vector<int> lengths = {65, 1, 9, 12, 63, 64, 127, 129};
  for (std::size_t n = 0; n < dims.size(); ++n) {
    for (std::size_t i = 0; i < full_or_sanitized(8, 2); ++i) {
      const int seqlen_q = lengths[i], seqlen_k = lengths[(i + n) % lengths.size()];
      check_on_targets({dtype}, fmt::format("b1_hq1_sq{}_sk{}_d{}_dv{}{}_meanv2_seed{}", seqlen_q, seqlen_k,
                                            dims[n].first, dims[n].second, n % 2 == 0 ? "_causal" : "", n));
    }
  }
}

TEST(layout_cases, r35_head_dims_and_lengths_in_f32) { run_head_dims(DType::F32); }
TEST(layout_cases, r35_head_dims_and_lengths_in_f16) { run_head_dims(DType::F16); }
TEST(layout_cases, r35_head_dims_and_lengths_in_bf16) { run_head_dims(DType::BF16); }

}  // namespace
}  // namespace onepass
