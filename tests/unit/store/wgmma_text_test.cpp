#include "store/wgmma_text.h"

#include <gmock/gmock.h>

namespace onepass {
namespace {

using ::testing::HasSubstr;

/// How often `word` stands in `text`.
int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

TEST(wgmma_text, a_product_of_shared_operands_starts_anew_and_moves_both_along) {
  for (const int n : {8, 64, 96, 128, 256}) {
    const int sums = n / 2;
    const std::string text = wgmma_from_shared("product", DType::BF16, n, {{0, 0}, {2, 2}, {1024, 512}});
    EXPECT_THAT(text, HasSubstr("float (&d)[" + std::to_string(sums) + "], Uint32 a, Uint32 b)"));
    EXPECT_EQ(count(text, "m64n" + std::to_string(n) + "k16.f32.bf16.bf16"), 3);
    EXPECT_EQ(count(text, "\"+f\""), sums);
    EXPECT_EQ(count(text, "\"r\""), 2);
    EXPECT_THAT(text, HasSubstr("setp.ne.u32 first, 0, 0;"));
    EXPECT_EQ(count(text, "a, b, first, 1, 1, 0, 0;"), 1);
    EXPECT_EQ(count(text, "a, b, more, 1, 1, 0, 0;"), 2);
    EXPECT_THAT(text, HasSubstr("add.u32 low, %" + std::to_string(sums) + ", 1024;"));
    EXPECT_THAT(text, HasSubstr("add.u32 low, %" + std::to_string(sums + 1) + ", 512;"));
  }
}

TEST(wgmma_text, rows_of_b_are_said_to_be_rows) {
  const std::string text = wgmma_from_shared("product", DType::BF16, 64, {{0, 0}, {2, 128}}, OperandB::Rows);
  EXPECT_EQ(count(text, "a, b, first, 1, 1, 0, 1;"), 1);
  EXPECT_EQ(count(text, "a, b, more, 1, 1, 0, 1;"), 1);
}

TEST(wgmma_text, a_product_of_registers_takes_four_a_step_and_adds_where_it_is_told_to) {
  for (const int n : {8, 64, 96, 128, 256}) {
    const int sums = n / 2;
    const std::string text = wgmma_from_registers("product", DType::F16, n, 2, 128);
    EXPECT_THAT(text, HasSubstr("const Uint32 (&a)[8], Uint32 b, int accumulate)"));
    EXPECT_EQ(count(text, "m64n" + std::to_string(n) + "k16.f32.f16.f16"), 2);
    EXPECT_EQ(count(text, "\"+f\""), sums);
    EXPECT_EQ(count(text, "\"r\""), 8 + 2);
    EXPECT_THAT(text, HasSubstr("setp.ne.u32 first, %" + std::to_string(sums + 9) + ", 0;"));
    EXPECT_THAT(text, HasSubstr("%" + std::to_string(sums + 3) + "}, b, first, 1, 1, 1;"));
    EXPECT_THAT(text, HasSubstr("%" + std::to_string(sums + 7) + "}, b, more, 1, 1, 1;"));
    EXPECT_THAT(text, HasSubstr("add.u32 low, %" + std::to_string(sums + 8) + ", 128;"));
  }
}

}  // namespace
}  // namespace onepass
