#include "dispatch/tensor_map_limits.h"

#include <gmock/gmock.h>

#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::bf16_problem;
using ::testing::HasSubstr;
using ::testing::Optional;

TEST(tensor_map_limits, boxes_of_pages_fill_a_block_of_keys) {
  EXPECT_EQ(page_box(24, 128), 8);
  EXPECT_EQ(page_box(64, 128), 64);
  EXPECT_EQ(page_box(256, 128), 128);
  EXPECT_EQ(page_box(64, 96), 32);
}

TEST(tensor_map_limits, strides_matter_where_there_is_more_than_one_element) {
  AttentionProblem problem = bf16_problem(1, 1, 1, 64, 64, 128);
  problem.k.batch = problem.k.head = 0;
  EXPECT_EQ(decline_tensor_maps(problem), std::nullopt) << "one sequence, one head";
  problem.batch = 2;
  problem.total_q = problem.total_k = 128;
  EXPECT_THAT(decline_tensor_maps(problem), Optional(HasSubstr("strides of k"))) << "the same keys for all";
  problem.k.batch = 64 * 128;
  problem.k.row = -128;
  EXPECT_THAT(decline_tensor_maps(problem), Optional(HasSubstr("strides of k"))) << "backwards";
}

}  // namespace
}  // namespace onepass
