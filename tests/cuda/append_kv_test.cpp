// append_kv on a GPU: what only device memory can show. The numbers are tests/cpu/append_kv_test.cpp's.
#include "onepass/append_kv.h"
#include "tests/cuda/on_gpu.h"

namespace onepass {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using gpu_append = OnGpu;

/// One sequence with a cache of four rows, `cached` of which are taken, and two more to come.
struct Step {
  HostTensor fresh{DType::BF16, {1, 2, 1, 8}, constant(3)};
  HostTensor k{DType::BF16, {1, 4, 1, 8}}, v{DType::BF16, {1, 4, 1, 8}};
  HostTensor cached{0}, then{-1};
  AppendArguments args;

  explicit Step(std::int32_t rows) {
    *static_cast<std::int32_t*>(cached.view().data) = rows;
    args.k_new = args.v_new = fresh.view();
    args.k_cache = k.view();
    args.v_cache = v.view();
    args.cache_seqlens = cached.view();
    args.seqlens_out = then.view();
  }
  std::vector<TensorView*> views() {
    return {&args.k_new, &args.v_new, &args.k_cache, &args.v_cache, &args.cache_seqlens, &args.seqlens_out};
  }
  std::int32_t rows_then() const { return *static_cast<const std::int32_t*>(then.view().data); }
};

TEST_F(gpu_append, without_a_tensor_for_it_the_next_call_reports_what_did_not_fit) {
  Step full(3), fits(2);
  const verify::DeviceCopies copies(full.views(), 0), others(fits.views(), 0);
  append_kv(full.args);
  EXPECT_EQ(copies.copy_back(), std::nullopt);
  EXPECT_THAT(bytes_of(full.k.view()), Each(verify::kPoison));
  EXPECT_EQ(full.rows_then(), 3);
  EXPECT_THAT(refusal_of([&] { append_kv(fits.args); }), HasSubstr("met a length past its tensors"));
  append_kv(fits.args);
  EXPECT_EQ(others.copy_back(), std::nullopt);
  EXPECT_EQ(fits.k.get({0, 3, 0, 7}), 3);
  EXPECT_EQ(fits.rows_then(), 4);
}

/// The CPU's bits: tests/cpu/append_kv_test.cpp.
TEST_F(gpu_append, a_cache_of_8_bits_saturates_and_keeps_nan) {
  const float rows[] = {NAN, INFINITY, -INFINITY, 1e38f, 3, -0.0f, 0.75f, 1e-38f};
  const auto appended = [&](DType stored, std::int64_t head_dim) {
    const HostTensor fresh(DType::BF16, {1, 1, 1, head_dim},
                           [&](auto idx) { return rows[static_cast<std::size_t>(idx[3])]; });
    const HostTensor k(stored, {1, 1, 1, head_dim}), v(stored, {1, 1, 1, head_dim});
    const HostTensor factors(DType::F32, {1}, constant(0.5));
    AppendArguments args;
    args.k_new = args.v_new = fresh.view();
    args.k_cache = k.view();
    args.v_cache = v.view();
    args.k_descale = factors.view();
    args.v_descale = factors.view();
    TensorView* const views[] = {&args.k_new,   &args.v_new,     &args.k_cache,
                                 &args.v_cache, &args.k_descale, &args.v_descale};
    const verify::DeviceCopies copies(views, 0);
    append_kv(args);
    EXPECT_EQ(copies.copy_back(), std::nullopt);
    EXPECT_EQ(bytes_of(k.view()), bytes_of(v.view()));
    return bytes_of(k.view());
  };
  for (const std::int64_t head_dim : {8, 7}) {  // in pieces, and element by element
    std::vector<unsigned char> e4m3{0x7f, 0x7e, 0xfe, 0x7e, 0x4c, 0x80, 0x3c, 0x00};
    std::vector<unsigned char> e5m2{0x7f, 0x7b, 0xfb, 0x7b, 0x46, 0x80, 0x3e, 0x00};
    std::vector<unsigned char> i8{0, 127, 128, 127, 6, 0, 2, 0};
    for (auto* bytes : {&e4m3, &e5m2, &i8}) bytes->resize(static_cast<std::size_t>(head_dim));
    EXPECT_EQ(appended(DType::F8E4M3, head_dim), e4m3);
    EXPECT_EQ(appended(DType::F8E5M2, head_dim), e5m2);
    EXPECT_EQ(appended(DType::I8, head_dim), i8);
  }
}

TEST_F(gpu_append, f32_and_inner_strides_are_not_taken) {
  Step step(0);
  const verify::DeviceCopies copies(step.views(), 0);
  AppendArguments strided = step.args;
  strided.k_new.strides[3] = 2;
  strided.k_new.shape[3] = strided.v_new.shape[3] = strided.k_cache.shape[3] = strided.v_cache.shape[3] = 4;
  EXPECT_THROW(append_kv(strided), NotSupported);
  for (TensorView* view : step.views()) {
    if (view->dtype == DType::BF16) view->dtype = DType::F32, view->shape[3] = 4;
  }
  EXPECT_THROW(append_kv(step.args), NotSupported);
}

TEST_F(gpu_append, host_memory_is_refused_by_name) {
  Step step(0);
  for (TensorView* view : step.views()) view->device = DeviceKind::Cuda;
  EXPECT_THAT(refusal_of([&] { append_kv(step.args); }), HasSubstr("k_new is said to be on GPU 0"));
}

}  // namespace
}  // namespace onepass
