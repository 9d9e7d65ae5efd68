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

TEST(wgmma_text, sums_come_first_then_operands_then_the_predicate) {
  for (const int n : {8, 64, 96, 128, 256}) {
    const int sums = n / 2;
    const std::string shared = wgmma_from_shared("product", DType::BF16, n);
    EXPECT_THAT(shared, HasSubstr("float (&d)[" + std::to_string(sums) + "]"));
    EXPECT_THAT(shared, HasSubstr("m64n" + std::to_string(n) + "k16.f32.bf16.bf16"));
    EXPECT_EQ(count(shared, "\"+f\""), sums);
    EXPECT_EQ(count(shared, "\"l\""), 2);
    EXPECT_EQ(count(shared, "\"r\""), 1);
    EXPECT_THAT(shared, HasSubstr("setp.ne.b32 p, %" + std::to_string(sums + 2) + ", 0;"));
    EXPECT_THAT(shared, HasSubstr("}, %" + std::to_string(sums) + ", %" + std::to_string(sums + 1) + ", p,"));

    const std::string registers = wgmma_from_registers("product", DType::F16, n);
    EXPECT_THAT(registers, HasSubstr("m64n" + std::to_string(n) + "k16.f32.f16.f16"));
    EXPECT_EQ(count(registers, "\"+f\""), sums);
    EXPECT_EQ(count(registers, "\"l\""), 1);
    EXPECT_EQ(count(registers, "\"r\""), 4 + 1);
    EXPECT_THAT(registers, HasSubstr("setp.ne.b32 p, %" + std::to_string(sums + 5) + ", 0;"));
    EXPECT_THAT(registers,
                HasSubstr("%" + std::to_string(sums + 3) + "}, %" + std::to_string(sums + 4) + ", p,"));
  }
}

TEST(wgmma_text, only_values_are_read_across_their_rows) {
  EXPECT_THAT(wgmma_from_shared("product", DType::F16, 64), HasSubstr("p, 1, 1, 0, 0;"));
  EXPECT_THAT(wgmma_from_registers("product", DType::F16, 64), HasSubstr("p, 1, 1, 1;"));
}

}  // namespace
}  // namespace onepass
