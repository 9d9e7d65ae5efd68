// Row R28: DLPack tensors whose data starts byte_offset past the base give the dense result or an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "onepass/onepass.h"
#include "support/float_types.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;

struct DlTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

/// A tensor inside a larger buffer: NaN (all bits set) around it, odd strides in its extent-1 dimensions.
class Buffer {
 public:
  Buffer(std::vector<std::int64_t> shape, std::uint8_t code, std::uint8_t bits, std::uint64_t byte_offset)
      : shape_(std::move(shape)),
        strides_(shape_.size()),
        code_(code),
        bits_(bits),
        byte_offset_(byte_offset) {
    std::int64_t stride = 1;
    for (std::size_t i = shape_.size(); i-- > 0;) {
      strides_[i] = shape_[i] == 1 ? 7 : stride;
      stride *= shape_[i];
    }
    bytes_ = static_cast<std::size_t>(stride) * bits / 8;
    memory_.resize((byte_offset + bytes_ + 128) / 8, ~std::uint64_t{0});
  }

  template <class T>
  T* values() {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(memory_.data()) + byte_offset_);
  }
  DlTensor dlpack(bool null_strides) {
    return {memory_.data(),
            1,
            0,
            static_cast<std::int32_t>(shape_.size()),
            code_,
            bits_,
            1,
            shape_.data(),
            null_strides ? nullptr : strides_.data(),
            byte_offset_};
  }
  bool surroundings_untouched() {
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.data());
    for (std::size_t i = 0; i < memory_.size() * 8; ++i) {
      if ((i < byte_offset_ || i >= byte_offset_ + bytes_) && bytes[i] != 0xff) return false;
    }
    return true;
  }

 private:
  std::vector<std::int64_t> shape_, strides_;
  std::uint8_t code_, bits_;
  std::uint64_t byte_offset_;
  std::size_t bytes_ = 0;
  std::vector<std::uint64_t> memory_;
};

struct Row {
  DType dtype;
  std::uint64_t byte_offset;
  std::int32_t backend;
};

class DlpackForward : public ::testing::TestWithParam<Row> {};

TEST_P(DlpackForward, offsets_give_the_dense_result_and_touch_nothing_else) {
  const auto [dtype, byte_offset, backend] = GetParam();
  const auto code = static_cast<std::uint8_t>(dtype == DType::BF16 ? 4 : 2);
  const auto bits = static_cast<std::uint8_t>(8 * dtype_bytes(dtype));
  constexpr std::int64_t kRows = 6, kKeys = 7, kHeadDim = 16;
  Buffer q({1, kRows, 1, kHeadDim}, code, bits, byte_offset),
      k({1, kKeys, 1, kHeadDim}, code, bits, byte_offset);
  Buffer v({1, kKeys, 1, kHeadDim}, code, bits, byte_offset),
      out({1, kRows, 1, kHeadDim}, code, bits, byte_offset);
  Buffer seqused({1}, 0, 32, 4);  // 5 of the 7 keys
  *seqused.values<std::int32_t>() = 5;
  for (std::int64_t i = 0; i < kRows * kHeadDim; ++i) store_float(q.values<char>(), dtype, i, 0.0f);
  for (std::int64_t i = 0; i < 5 * kHeadDim; ++i) {  // rows past seqused_k stay NaN
    store_float(k.values<char>(), dtype, i, 0.5f);
    store_float(v.values<char>(), dtype, i, static_cast<float>(i / kHeadDim + 1));
  }
  for (const bool null_strides : {true, false}) {
    onepass_forward_args args = ONEPASS_FORWARD_ARGS_INIT;
    onepass_tensor tensors[5];
    Buffer* buffers[] = {&q, &k, &v, &out, &seqused};
    for (int i = 0; i < 5; ++i) {
      tensors[i] = ONEPASS_TENSOR_INIT;
      const DlTensor source = buffers[i]->dlpack(null_strides);
      ASSERT_EQ(onepass_tensor_from_dlpack(&source, &tensors[i]), ONEPASS_OK) << onepass_last_error_message();
    }
    args.q = &tensors[0];
    args.k = &tensors[1];
    args.v = &tensors[2];
    args.out = &tensors[3];
    args.seqused_k = &tensors[4];
    std::memset(out.values<char>(), 0xff, static_cast<std::size_t>(kRows * kHeadDim * bits / 8));
    onepass_forward_options options = ONEPASS_FORWARD_OPTIONS_INIT;
    options.backend = backend;
    ASSERT_EQ(onepass_forward(&args, &options), ONEPASS_OK) << onepass_last_error_message();
    for (std::int64_t i = 0; i < kRows * kHeadDim; ++i) {
      ASSERT_FLOAT_EQ(load_float(out.values<char>(), dtype, i), 3.0f) << "element " << i;
    }
    for (Buffer* buffer : buffers) EXPECT_TRUE(buffer->surroundings_untouched());
  }
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const std::int32_t backend : {ONEPASS_BACKEND_CPU, ONEPASS_BACKEND_REFERENCE}) {
    for (const std::uint64_t byte_offset : {2u, 4u, 6u, 16u, 32u}) {
      all.push_back({DType::BF16, byte_offset, backend});
      all.push_back({DType::F16, byte_offset, backend});
      if (byte_offset % 4 == 0) all.push_back({DType::F32, byte_offset, backend});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(offsets, DlpackForward, ::testing::ValuesIn(rows()), [](const auto& row) {
  return std::string(dtype_name(row.param.dtype)) + "_offset_" + std::to_string(row.param.byte_offset) +
         (row.param.backend == ONEPASS_BACKEND_CPU ? "_cpu" : "_reference");
});

TEST(dlpack_forward, a_misaligned_offset_is_refused_by_the_c_function) {
  for (const std::uint64_t byte_offset : {2u, 6u}) {
    Buffer q({1, 2, 1, 8}, 2, 32, byte_offset);
    const DlTensor source = q.dlpack(true);
    onepass_tensor tensor = ONEPASS_TENSOR_INIT;
    EXPECT_EQ(onepass_tensor_from_dlpack(&source, &tensor), ONEPASS_INVALID_ARGUMENT);
    EXPECT_THAT(onepass_last_error_message(), HasSubstr("onepass_tensor_from_dlpack: data "));
    EXPECT_THAT(onepass_last_error_message(), HasSubstr("is not aligned to f32 elements of 4 bytes"));
    EXPECT_EQ(tensor.data, nullptr);
  }
}

TEST(dlpack_forward, a_gpu_tensor_needs_a_struct_that_can_say_so) {
  Buffer q({1, 2, 1, 8}, 2, 32, 0);
  DlTensor source = q.dlpack(true);
  source.device_type = 2;
  onepass_tensor tensor = ONEPASS_TENSOR_INIT;
  ASSERT_EQ(onepass_tensor_from_dlpack(&source, &tensor), ONEPASS_OK);
  EXPECT_EQ(tensor.device, ONEPASS_DEVICE_CUDA);
  tensor.struct_size = offsetof(onepass_tensor, device);
  EXPECT_EQ(onepass_tensor_from_dlpack(&source, &tensor), ONEPASS_INVALID_ARGUMENT);
  EXPECT_THAT(onepass_last_error_message(), HasSubstr("too few bytes for the value to write"));
}

}  // namespace
}  // namespace onepass
