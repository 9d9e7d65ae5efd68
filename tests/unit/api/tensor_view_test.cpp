#include "onepass/tensor_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "onepass/error.h"

namespace onepass {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

/// dlpack.h's DLTensor, written down again: the struct that callers bring.
struct DlTensor {
  void* data = nullptr;
  struct {
    int device_type = 1;
    std::int32_t device_id = 0;
  } device;
  std::int32_t ndim = 0;
  struct {
    std::uint8_t code = 2, bits = 32;
    std::uint16_t lanes = 1;
  } dtype;
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;
  std::uint64_t byte_offset = 0;
};

class FromDlpack : public ::testing::Test {
 protected:
  FromDlpack() {
    tensor.data = memory;
    set_shape({2, 3, 4});
  }
  void set_shape(std::vector<std::int64_t> extents) {
    shape = std::move(extents);
    tensor.shape = shape.data();
    tensor.ndim = static_cast<std::int32_t>(shape.size());
  }
  void set_strides(std::vector<std::int64_t> values) {
    strides = std::move(values);
    tensor.strides = strides.data();
  }
  void set_dtype(int code, int bits, int lanes = 1) {
    tensor.dtype = {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits),
                    static_cast<std::uint16_t>(lanes)};
  }

  alignas(64) std::byte memory[256] = {};
  std::vector<std::int64_t> shape, strides;
  DlTensor tensor;
};

template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::int64_t> strides_of(const TensorView& view) {
  return {view.strides.begin(), view.strides.begin() + view.rank};
}
std::vector<std::int64_t> shape_of(const TensorView& view) {
  return {view.shape.begin(), view.shape.begin() + view.rank};
}

TEST(make_view, without_strides_is_row_major) {
  float values[24] = {};
  const TensorView view = make_view(values, DType::F32, {2, 3, 4});
  EXPECT_EQ(view.data, values);
  EXPECT_EQ(view.dtype, DType::F32);
  EXPECT_EQ(view.rank, 3);
  EXPECT_THAT(shape_of(view), ElementsAre(2, 3, 4));
  EXPECT_THAT(strides_of(view), ElementsAre(12, 4, 1));
  EXPECT_EQ(view.device, DeviceKind::Cpu);
  EXPECT_EQ(view.num_elements(), 24);
}

TEST(make_view, an_extent_of_zero_keeps_the_other_strides_usable) {
  const TensorView view = make_view(nullptr, DType::BF16, {2, 0, 4});
  EXPECT_THAT(strides_of(view), ElementsAre(4, 4, 1));
  EXPECT_EQ(view.num_elements(), 0);
  EXPECT_TRUE(view.present());
}

TEST(make_view, takes_given_strides_as_they_are) {
  const std::int64_t shape[] = {2, 3}, strides[] = {0, -7};
  const TensorView view = make_view(nullptr, DType::F16, shape, strides);
  EXPECT_THAT(strides_of(view), ElementsAre(0, -7));
}

TEST(make_view, more_than_five_dimensions_or_none_are_refused_with_the_number) {
  EXPECT_THAT(message_of([] {
                make_view(nullptr, DType::F32, {1, 1, 1, 1, 1, 1});
              }),
              AllOf(StartsWith("make_view: shape has 6 dimensions.\n"), HasSubstr("1 to 5 dimensions")));
  EXPECT_THAT(message_of([] { make_view(nullptr, DType::F32, std::span<const std::int64_t>()); }),
              AllOf(HasSubstr("shape has 0 dimensions"), HasSubstr("default-constructed TensorView")));
}

TEST(make_view, a_negative_extent_is_refused_with_the_shape) {
  EXPECT_THAT(message_of([] {
                make_view(nullptr, DType::F32, {2, -3, 4});
              }),
              AllOf(HasSubstr("shape [2, -3, 4] has a negative extent"), HasSubstr("0 or more")));
}

TEST(make_view, a_number_of_elements_past_64_bits_is_refused_even_beside_a_zero_extent) {
  EXPECT_EQ(make_view(nullptr, DType::F32, {kLargest}).num_elements(), kLargest);
  EXPECT_THAT(message_of([] {
                make_view(nullptr, DType::F32, {kLargest / 2 + 1, 2});
              }),
              HasSubstr("has more elements than 64 bits count"));
  EXPECT_THAT(message_of([] {
                make_view(nullptr, DType::F32, {0, kLargest, kLargest});
              }),
              HasSubstr("has more elements than 64 bits count"));
}

TEST(make_view, another_number_of_strides_than_extents_is_refused_with_both) {
  const std::int64_t shape[] = {2, 3}, strides[] = {3, 1, 1};
  EXPECT_THAT(message_of([&] { make_view(nullptr, DType::F32, shape, strides); }),
              AllOf(HasSubstr("strides [3, 1, 1] are given for shape [2, 3]"),
                    HasSubstr("one stride per dimension")));
}

TEST(transpose, exchanges_extents_and_strides_and_keeps_the_data) {
  float values[24] = {};
  const TensorView view = transpose(make_view(values, DType::F32, {2, 3, 4}), 1, 2);
  EXPECT_THAT(shape_of(view), ElementsAre(2, 4, 3));
  EXPECT_THAT(strides_of(view), ElementsAre(12, 1, 4));
  EXPECT_EQ(view.data, values);
  EXPECT_EQ(transpose(view, 2, 1), make_view(values, DType::F32, {2, 3, 4}));
  EXPECT_EQ(transpose(view, 1, 1), view);
}

TEST(transpose, a_dimension_out_of_range_is_refused_with_the_range) {
  const TensorView view = make_view(nullptr, DType::F32, {2, 3, 4});
  EXPECT_THAT(
      message_of([&] { transpose(view, 0, 3); }),
      AllOf(HasSubstr("dimensions 0 and 3 are given for shape [2, 3, 4]"), HasSubstr("dimensions 0 to 2")));
  EXPECT_THAT(message_of([&] { transpose(view, -1, 0); }), HasSubstr("dimensions -1 and 0"));
}

TEST(dtype_name, every_dtype_has_its_short_name) {
  EXPECT_STREQ(dtype_name(DType::F32), "f32");
  EXPECT_STREQ(dtype_name(DType::F16), "f16");
  EXPECT_STREQ(dtype_name(DType::BF16), "bf16");
  EXPECT_STREQ(dtype_name(DType::F8E4M3), "f8e4m3");
  EXPECT_STREQ(dtype_name(DType::F8E5M2), "f8e5m2");
  EXPECT_STREQ(dtype_name(DType::I32), "i32");
  EXPECT_STREQ(dtype_name(DType::I8), "i8");
}

TEST_F(FromDlpack, null_strides_mean_row_major) {
  EXPECT_EQ(from_dlpack(tensor), make_view(memory, DType::F32, {2, 3, 4}));
}

TEST_F(FromDlpack, every_dtype_of_the_interface_is_recognised) {
  const struct {
    int code, bits;
    DType dtype;
  } rows[] = {{2, 32, DType::F32},    {2, 16, DType::F16}, {4, 16, DType::BF16}, {10, 8, DType::F8E4M3},
              {12, 8, DType::F8E5M2}, {0, 32, DType::I32}, {0, 8, DType::I8}};
  for (const auto& row : rows) {
    set_dtype(row.code, row.bits);
    EXPECT_EQ(from_dlpack(tensor).dtype, row.dtype);
  }
}

TEST_F(FromDlpack, a_dtype_outside_the_interface_is_refused_with_code_bits_and_lanes) {
  // f64, i64, u32, e4m3 with infinities (code 8, another format than e4m3fn), four floats per element.
  const int rows[][3] = {{2, 64, 1}, {0, 64, 1}, {1, 32, 1}, {8, 8, 1}, {2, 32, 4}, {2, 32, 0}};
  for (const auto& [code, bits, lanes] : rows) {
    set_dtype(code, bits, lanes);
    EXPECT_THAT(message_of([&] { from_dlpack(tensor); }),
                AllOf(StartsWith("from_dlpack: dtype has code " + std::to_string(code) + ", bits " +
                                 std::to_string(bits) + ", lanes " + std::to_string(lanes) + ".\n"),
                      HasSubstr("bf16 (4, 16)")));
  }
}

TEST_F(FromDlpack, byte_offset_moves_the_address_or_is_refused_as_misaligned) {
  for (const std::uint64_t offset : {2u, 4u, 6u, 16u, 32u}) {
    tensor.byte_offset = offset;
    set_dtype(4, 16);
    EXPECT_EQ(from_dlpack(tensor).data, memory + offset);
    set_dtype(10, 8);
    EXPECT_EQ(from_dlpack(tensor).data, memory + offset);
    set_dtype(2, 32);
    if (offset % 4 == 0) {
      EXPECT_EQ(from_dlpack(tensor).data, memory + offset);
    } else {
      EXPECT_THAT(message_of([&] { from_dlpack(tensor); }),
                  AllOf(HasSubstr("with byte_offset " + std::to_string(offset) + " is not aligned to f32"),
                        HasSubstr("data + byte_offset is a multiple of 4")));
    }
  }
}

TEST_F(FromDlpack, a_misaligned_base_that_the_offset_aligns_is_fine) {
  tensor.data = memory + 2;
  tensor.byte_offset = 6;
  EXPECT_EQ(from_dlpack(tensor).data, memory + 8);
}

TEST_F(FromDlpack, an_offset_past_the_address_space_is_refused) {
  tensor.byte_offset = std::numeric_limits<std::uint64_t>::max() - 3;
  EXPECT_THAT(message_of([&] { from_dlpack(tensor); }), HasSubstr("past the end of the address space"));
}

TEST_F(FromDlpack, a_null_pointer_stays_null_whatever_the_offset) {
  tensor.data = nullptr;
  tensor.byte_offset = 2;
  EXPECT_EQ(from_dlpack(tensor).data, nullptr);
}

TEST_F(FromDlpack, strides_of_extent_one_dimensions_are_replaced_and_others_are_kept) {
  set_shape({1, 5, 1, 4});
  set_strides({7, 40, 7, 2});
  EXPECT_THAT(strides_of(from_dlpack(tensor)), ElementsAre(20, 40, 4, 2));
}

TEST_F(FromDlpack, cuda_keeps_its_index_and_pinned_memory_is_cpu_memory) {
  tensor.device.device_id = 3;
  const struct {
    int device_type;
    DeviceKind kind;
    int index;
  } rows[] = {
      {1, DeviceKind::Cpu, 0}, {2, DeviceKind::Cuda, 3}, {3, DeviceKind::Cpu, 0}, {13, DeviceKind::Cuda, 3}};
  for (const auto& row : rows) {
    tensor.device.device_type = row.device_type;
    EXPECT_EQ(from_dlpack(tensor).device, row.kind);
    EXPECT_EQ(from_dlpack(tensor).device_idx, row.index);
  }
  for (const int unknown : {0, 7, 10, -1}) {
    tensor.device.device_type = unknown;
    EXPECT_THAT(message_of([&] { from_dlpack(tensor); }),
                AllOf(HasSubstr("device_type is " + std::to_string(unknown)), HasSubstr("kDLCPU (1)")));
  }
}

TEST_F(FromDlpack, shapes_are_held_to_the_rules_of_make_view) {
  set_shape({2, -1});
  EXPECT_THAT(message_of([&] { from_dlpack(tensor); }),
              StartsWith("from_dlpack: shape [2, -1] has a negative"));
  set_shape({kLargest, 4});
  EXPECT_THAT(message_of([&] { from_dlpack(tensor); }), HasSubstr("more elements than 64 bits count"));
  set_shape({1, 1, 1, 1, 1, 1});
  EXPECT_THAT(message_of([&] { from_dlpack(tensor); }),
              AllOf(HasSubstr("tensor has ndim 6"), HasSubstr("1 to 5")));
  for (const int ndim : {0, -2}) {
    tensor.ndim = ndim;
    EXPECT_THAT(message_of([&] { from_dlpack(tensor); }),
                HasSubstr("tensor has ndim " + std::to_string(ndim)));
  }
  tensor.ndim = 2;
  tensor.shape = nullptr;
  EXPECT_THAT(message_of([&] { from_dlpack(tensor); }), HasSubstr("a null shape"));
}

}  // namespace
}  // namespace onepass
