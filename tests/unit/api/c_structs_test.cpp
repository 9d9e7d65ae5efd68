// The rule of growth, on pretend structs of an older and a newer version.
#include "api/c_structs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "onepass/error.h"

namespace onepass::c {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Old {
  std::size_t struct_size = sizeof(Old);
  std::int64_t first = 1;
};
struct Known {
  std::size_t struct_size = sizeof(Known);
  std::int64_t first = 1;
  std::int64_t second = 22;
};
struct Newer {
  std::size_t struct_size = sizeof(Newer);
  std::int64_t first = 1, second = 2, third = 0;
};

constexpr Known kDefaults{};

template <class T>
Known read(const T& given) {
  return read_struct("call", "s", reinterpret_cast<const Known*>(&given), kDefaults, sizeof(Old));
}

template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(c_structs, fields_that_an_older_caller_lacks_take_their_defaults) {
  const struct {
    Old old{sizeof(Old), 5};
    std::int64_t garbage = -1;  // where `second` would be
  } memory;
  EXPECT_EQ(read(memory).first, 5);
  EXPECT_EQ(read(memory).second, 22);
}

TEST(c_structs, a_newer_caller_that_leaves_unknown_fields_at_zero_is_served) {
  EXPECT_EQ(read(Newer{}).second, 2);
}

TEST(c_structs, an_unknown_field_that_is_not_zero_is_refused_with_its_place) {
  Newer newer;
  newer.third = std::int64_t{1} << 40;  // byte 5 of the field
  EXPECT_THAT(message_of([&] { read(newer); }),
              AllOf(HasSubstr("call: s has struct_size 32, and its byte 29 is not zero"),
                    HasSubstr("knows 24 bytes"), HasSubstr("load a newer onepass")));
}

TEST(c_structs, sizes_that_no_caller_can_have_are_refused) {
  for (const std::size_t size : {std::size_t{0}, sizeof(Old) - 8, sizeof(Old) + 4, std::size_t{1} << 40}) {
    Known known;
    known.struct_size = size;
    EXPECT_THAT(message_of([&] { read(known); }),
                AllOf(HasSubstr("s has struct_size " + std::to_string(size)),
                      HasSubstr("16 or more, a multiple of 8"), HasSubstr("_INIT")));
  }
  const Known* volatile absent = nullptr;  // hidden from the optimiser, which warns of what a caller would do
  EXPECT_THAT(message_of([&] { read_struct<Known>("call", "s", absent, kDefaults, sizeof(Old)); }),
              HasSubstr("call: s is NULL"));
}

TEST(c_structs, writing_to_an_older_caller_stays_inside_its_struct) {
  struct {
    Old old;
    std::int64_t canary = 77;
  } memory;
  write_struct("call", "s", reinterpret_cast<Known*>(&memory), sizeof(Old), Known{0, 9, 22}, kDefaults);
  EXPECT_EQ(memory.old.struct_size, sizeof(Old));
  EXPECT_EQ(memory.old.first, 9);
  EXPECT_EQ(memory.canary, 77);
}

TEST(c_structs, a_value_that_an_older_struct_cannot_hold_is_refused_and_nothing_written) {
  Old old;
  EXPECT_THAT(
      message_of([&] {
        write_struct("call", "s", reinterpret_cast<Known*>(&old), sizeof(Old), Known{0, 9, 23}, kDefaults);
      }),
      AllOf(HasSubstr("s has struct_size 16, too few bytes"), HasSubstr("24 bytes for this value")));
  EXPECT_EQ(old.first, 1);
}

TEST(c_structs, writing_to_a_newer_caller_clears_the_fields_that_are_unknown_here) {
  Newer newer;
  newer.third = 3;
  write_struct("call", "s", reinterpret_cast<Known*>(&newer), sizeof(Newer), Known{0, 9, 23}, kDefaults);
  EXPECT_EQ(newer.struct_size, sizeof(Newer));
  EXPECT_EQ(newer.second, 23);
  EXPECT_EQ(newer.third, 0);
}

}  // namespace
}  // namespace onepass::c
