#include "io/host_tensor.h"

#include <limits>

#include "helpers.h"

namespace onepass::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(host_tensor, a_new_tensor_is_row_major_and_aligned) {
  const HostTensor tensor = allocate_tensor(DType::BF16, std::array<std::int64_t, 4>{2, 3, 5, 7});
  EXPECT_THAT(tensor.strides, ElementsAre(105, 35, 7, 1));
  EXPECT_EQ(tensor.num_elements(), 210);
  EXPECT_EQ(tensor.num_bytes(), 420u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.storage.get()) % HostTensor::kAlignment, 0u);
  EXPECT_EQ(tensor.view(), make_view(tensor.storage.get(), DType::BF16, {2, 3, 5, 7}));
}

TEST(host_tensor, no_elements_take_no_memory_whatever_the_other_extents_are) {
  const HostTensor tensor =
      allocate_tensor(DType::F16, std::array<std::int64_t, 3>{2, 0, std::int64_t{1} << 58});
  EXPECT_EQ(tensor.num_bytes(), 0u);
  EXPECT_TRUE(tensor.view().present());
}

TEST(host_tensor, a_default_tensor_is_absent) {
  EXPECT_FALSE(HostTensor{}.view().present());
  EXPECT_EQ(HostTensor{}.num_bytes(), 0u);
}

TEST(host_tensor, shapes_outside_the_rules_are_refused) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::vector<std::int64_t>> shapes = {{},     {1, 1, 1, 1, 1, 1},          {2, -1},
                                                         {kMax}, {1 << 30, 1 << 30, 1 << 30}, {0, kMax, 2}};
  for (const auto& shape : shapes) {
    EXPECT_THAT(message_of([&] { allocate_tensor(DType::F32, shape); }),
                AllOf(HasSubstr("allocate_tensor: shape is ["), HasSubstr("less than 2^63 bytes")));
  }
}

}  // namespace
}  // namespace onepass::io
