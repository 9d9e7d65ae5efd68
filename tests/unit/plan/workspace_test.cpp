#include "plan/workspace.h"

#include <gmock/gmock.h>

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "backends/cpu/backend.h"
#include "plan/make_plan.h"
#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;
using testing::invented_cpu;
using testing::packed_problem;

TEST(workspace, pieces_are_aligned_and_follow_each_other) {
  Plan plan;
  EXPECT_EQ(plan.workspace_bytes(), 0u);
  add_workspace_piece(plan, "a", 1);
  add_workspace_piece(plan, "nothing", 0);
  add_workspace_piece(plan, "b", 64);
  add_workspace_piece(plan, "c", 65);
  ASSERT_EQ(plan.workspace.size(), 3u);
  EXPECT_EQ(plan.workspace[1].offset_bytes, 64u);
  EXPECT_EQ(plan.workspace[2].offset_bytes, 128u);
  EXPECT_EQ(plan.workspace_bytes(), 256u);
}

TEST(workspace, carving_gives_the_counted_bytes_and_nothing_for_other_names) {
  Plan plan;
  add_workspace_piece(plan, "a", 10);
  add_workspace_piece(plan, "b", 100);
  std::vector<std::byte> memory(plan.workspace_bytes());
  const auto b = workspace_piece(plan, memory, "b");
  EXPECT_EQ(b.data(), memory.data() + 64);
  EXPECT_EQ(b.size(), 100u);
  EXPECT_TRUE(workspace_piece(plan, memory, "c").empty());
}

TEST(workspace, carving_from_too_little_memory_is_refused) {
  Plan plan;
  add_workspace_piece(plan, "a", 100);
  std::vector<std::byte> memory(99);
  EXPECT_THROW(workspace_piece(plan, memory, "a"), InternalError);
}

TEST(workspace, sizes_past_the_address_space_are_an_error_and_not_a_small_number) {
  Plan plan;
  EXPECT_THROW(workspace_product("p", std::size_t{1} << 40, std::size_t{1} << 40), NotSupported);
  EXPECT_EQ(workspace_product("p", std::size_t{1} << 31, 4), std::size_t{1} << 33);
  EXPECT_EQ(workspace_product("p", 5, 0), 0u);
  try {
    add_workspace_piece(plan, "huge_piece", std::numeric_limits<std::size_t>::max() / 2);
    FAIL();
  } catch (const NotSupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("huge_piece"));
  }
}

// 528 sequences, 64 query heads on 4 key heads: the size must hold exactly what run carves, in every split.
TEST(workspace, many_short_packed_sequences_get_room_for_every_row_and_split) {
  for (const std::int64_t head_dim : {128, 256}) {
    for (const int num_splits : {0, 1, 2, 8}) {
      const AttentionProblem problem = packed_problem(528, 64, 4, 1, 528, 8192, 528 * 4000, head_dim);
      const Plan plan = make_plan("plan", problem, {.num_splits = num_splits}, invented_cpu(128));
      const std::unique_ptr<std::byte[]> bytes(new std::byte[plan.workspace_bytes()]);  // never touched
      const std::span<std::byte> memory(bytes.get(), plan.workspace_bytes());
      std::size_t end = 0;
      for (const WorkspacePiece& piece : plan.workspace) {
        EXPECT_EQ(piece.offset_bytes % kWorkspaceAlignment, 0u);
        EXPECT_GE(piece.offset_bytes, end) << piece.name << " overlaps the piece before";
        end = piece.offset_bytes + piece.bytes;
        EXPECT_EQ(workspace_piece(plan, memory, piece.name.c_str()).size(), piece.bytes);
      }
      EXPECT_LE(end, plan.workspace_bytes());
      EXPECT_LT(plan.workspace_bytes() - end, kWorkspaceAlignment);
      const std::size_t partial_rows =
          plan.num_splits == 1 ? 0 : 528u * 64 * static_cast<std::size_t>(plan.num_splits);
      EXPECT_EQ(workspace_piece(plan, memory, kPieceSplitLse).size(), partial_rows * 4);
      EXPECT_EQ(workspace_piece(plan, memory, kPieceSplitOut).size(),
                partial_rows * 4 * static_cast<std::size_t>(head_dim));
      EXPECT_EQ(workspace_piece(plan, memory, kPieceThreadScratch).size(),
                static_cast<std::size_t>(plan.num_threads) *
                    cpu::simd_scratch_bytes(problem, plan.tile_m, plan.tile_n));
    }
  }
}

}  // namespace
}  // namespace onepass
