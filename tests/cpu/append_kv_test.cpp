// append_kv against plain loops, on the CPU and, where there is one, on the GPU.
#include <gmock/gmock.h>

#include "tests/cpu/append_case.h"
#include "tests/cpu/call.h"
#include "tests/cpu/sizes.h"
#include "verify/device_copies.h"

namespace onepass {
namespace {

const std::int64_t kCases = full_or_sanitized(50, 10);

void append_on_cpu(AppendCase& c, std::int64_t seed) {
  c.options.num_threads = 1 + static_cast<int>(seed % 3);
  append_kv(c.args, c.options);
  c.expect_right();
}

void append_on_gpu(AppendCase& c) {
  const AppendArguments host = c.args;
  const verify::DeviceCopies copies(c.views(), 0);
  append_kv(c.args, c.options);
  EXPECT_EQ(copies.copy_back(), std::nullopt);
  c.args = host;
  c.expect_right();
}

TEST(append_kv, writes_rows_where_they_belong_and_nothing_else) {
  for (const DType dtype : kFloatTypes) {
    for (std::int64_t seed = 0; seed < kCases; ++seed) {
      for (const bool in_pieces : {false, true}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " seed " + std::to_string(seed) +
                     (in_pieces ? " pieces" : ""));
        AppendCase c(seed, {dtype, in_pieces});
        append_on_cpu(c, seed);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(append_kv, on_a_gpu_writes_the_same_and_leaves_alone_what_does_not_fit) {
  if (!target_wanted(Backend::Cuda)) GTEST_SKIP() << "no GPU";
  std::int64_t misfits = 0;
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (std::int64_t seed = 0; seed < kCases; ++seed) {
      for (const bool in_pieces : {false, true}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " seed " + std::to_string(seed) +
                     (in_pieces ? " pieces" : ""));
        AppendCase c(seed, {dtype, in_pieces, seed % 2 == 1});
        append_on_gpu(c);
        misfits += c.num_misfits();
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(misfits, 20);
}

TEST(append_kv, divides_rows_for_a_cache_of_8_bits) {
  for (const DType dtype : kFloatTypes) {
    for (const DType stored : {DType::F8E4M3, DType::F8E5M2, DType::I8}) {
      for (std::int64_t seed = 100; seed < 100 + kCases; ++seed) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " to " + dtype_name(stored) + " seed " +
                     std::to_string(seed));
        AppendCase c(seed, {.dtype = dtype, .in_pieces = seed % 2 == 0, .stored = stored});
        append_on_cpu(c, seed);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(append_kv, on_a_gpu_divides_rows_for_a_cache_of_8_bits) {
  if (!target_wanted(Backend::Cuda)) GTEST_SKIP() << "no GPU";
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (const DType stored : {DType::F8E4M3, DType::F8E5M2, DType::I8}) {
      for (std::int64_t seed = 100; seed < 100 + kCases; ++seed) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " to " + dtype_name(stored) + " seed " +
                     std::to_string(seed));
        AppendCase c(seed, {dtype, seed % 2 == 0, seed % 4 < 2, stored});
        append_on_gpu(c);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(append_kv, what_no_8_bits_hold_becomes_the_largest_value_and_nan_is_documented) {
  const float rows[] = {kNan, kInf, -kInf, 1e38f, 3, -0.0f, 0.75f, 1e-38f};
  const HostTensor fresh(DType::F32, {1, 1, 1, 8},
                         [&](auto idx) { return rows[static_cast<std::size_t>(idx[3])]; });
  const auto appended = [&](DType stored, float factor) {
    const HostTensor k(stored, {1, 1, 1, 8}), v(stored, {1, 1, 1, 8});
    const HostTensor factors(DType::F32, {1}, constant(static_cast<double>(factor)));
    AppendArguments args;
    args.k_new = args.v_new = fresh.view();
    args.k_cache = k.view();
    args.v_cache = v.view();
    args.k_descale = args.v_descale = factors.view();
    append_kv(args);
    EXPECT_EQ(bytes_of(k.view()), bytes_of(v.view()));
    return bytes_of(k.view());
  };
  using Bytes = std::vector<unsigned char>;
  EXPECT_EQ(appended(DType::F8E4M3, 0.5f), (Bytes{0x7f, 0x7e, 0xfe, 0x7e, 0x4c, 0x80, 0x3c, 0x00}));
  EXPECT_EQ(appended(DType::F8E5M2, 0.5f), (Bytes{0x7f, 0x7b, 0xfb, 0x7b, 0x46, 0x80, 0x3e, 0x00}));
  EXPECT_EQ(appended(DType::I8, 0.5f), (Bytes{0, 127, 128, 127, 6, 0, 2, 0})) << "1.5 rounds to the even 2";
  EXPECT_EQ(appended(DType::I8, 0.0f), (Bytes{0, 127, 128, 127, 127, 0, 127, 127})) << "0 / 0 is NaN";
}

TEST(append_kv, q_may_be_turned_in_place_and_strides_are_free) {
  // [positions, 2] of quarter turns: (x, y) becomes (-y, x) at odd positions.
  const HostTensor cos(DType::F32, {4, 2}, [](auto idx) { return idx[0] % 2 == 0 ? 1 : 0; });
  const HostTensor sin(DType::F32, {4, 2}, [](auto idx) { return idx[0] % 2; });
  for (const bool interleaved : {false, true}) {
    HostTensor q(DType::F32, {1, 2, 1, 5}, [](auto idx) { return 10 * idx[1] + idx[3] + 1; });
    const HostTensor fresh(DType::F32, {5, 1, 2, 1}, [](auto idx) { return 10 * idx[2] + idx[0] + 1; });
    const HostTensor k_cache(DType::F32, {5, 1, 3, 1}), v_cache(DType::F32, {5, 1, 3, 1});
    const HostTensor lengths{1};
    AppendArguments args;
    const auto view = [](const HostTensor& tensor, const std::vector<std::int64_t>& shape,
                         const std::vector<std::int64_t>& strides) {
      return make_view(tensor.view().data, DType::F32, shape, strides);
    };
    args.k_new = args.v_new = view(fresh, {1, 2, 1, 5}, {2, 1, 2, 2});
    args.k_cache = view(k_cache, {1, 3, 1, 5}, {15, 1, 15, 3});
    args.v_cache = view(v_cache, {1, 3, 1, 5}, {15, 1, 15, 3});
    args.cache_seqlens = lengths.view();
    args.q = args.q_out = q.view();
    args.rotary_cos = cos.view();
    args.rotary_sin = sin.view();
    append_kv(args, {.rotary_interleaved = interleaved});
    const std::vector<float> turned =
        interleaved ? std::vector<float>{-2, 1, -4, 3, 5} : std::vector<float>{-3, -4, 1, 2, 5};
    for (std::int64_t d = 0; d < 5; ++d) {
      const auto at = static_cast<std::size_t>(d);
      EXPECT_EQ(q.get({0, 0, 0, d}), turned[at]);
      EXPECT_EQ(q.get({0, 1, 0, d}), 11 + static_cast<float>(d)) << "position 2 turns by nothing";
      EXPECT_TRUE(std::isnan(k_cache.get({d, 0, 0, 0})));
      EXPECT_EQ(k_cache.get({d, 0, 1, 0}), turned[at]);
      EXPECT_EQ(v_cache.get({d, 0, 1, 0}), 1 + static_cast<float>(d));
      EXPECT_EQ(v_cache.get({d, 0, 2, 0}), 11 + static_cast<float>(d));
    }
  }
}

/// R33: page 16, 4 columns.
TEST(append_kv, r33_past_the_capacity_is_an_error_and_nothing_is_written) {
  for (const auto& [cached, added] : {std::pair{64, 1}, {62, 3}, {65, 0}}) {
    const HostTensor fresh(DType::BF16, {1, added, 2, 8}, noise(1)), k(DType::BF16, {4, 16, 2, 8}),
        v(DType::BF16, {4, 16, 2, 8});
    const HostTensor lengths{cached}, pages{3, 1, 0, 2};
    AppendArguments args;
    args.k_new = args.v_new = fresh.view();
    args.k_cache = k.view();
    args.v_cache = v.view();
    args.cache_seqlens = lengths.view();
    args.block_table = make_view(pages.view().data, DType::I32, {1, 4});
    EXPECT_THROW(append_kv(args), InvalidArgument);
    for (const HostTensor* cache : {&k, &v}) {
      const std::vector<unsigned char> bytes = bytes_of(cache->view());
      EXPECT_THAT(bytes, ::testing::Each(verify::kPoison));
      EXPECT_TRUE(cache->memory().guards_intact());
    }
  }
}

}  // namespace
}  // namespace onepass
