#include "api/status_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "support/message.h"

namespace onepass::c {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A kind of error that the guard's list does not name.
class NewKind : public Error {
 public:
  using Error::Error;
};

template <class Exception>
onepass_status status_of(const Exception& exception) {
  return guarded("onepass_call", [&] { throw exception; });
}

TEST(status_guard, every_kind_of_exception_has_its_status) {
  EXPECT_EQ(status_of(InvalidArgument("x")), ONEPASS_INVALID_ARGUMENT);
  EXPECT_EQ(status_of(NotSupported("x")), ONEPASS_NOT_SUPPORTED);
  EXPECT_EQ(status_of(EnvironmentError("x")), ONEPASS_ENVIRONMENT);
  EXPECT_EQ(status_of(InternalError("x")), ONEPASS_INTERNAL);
  EXPECT_EQ(status_of(NewKind("x")), ONEPASS_INTERNAL);
  EXPECT_EQ(status_of(std::bad_alloc()), ONEPASS_OUT_OF_MEMORY);
  EXPECT_EQ(status_of(std::bad_array_new_length()), ONEPASS_OUT_OF_MEMORY);
  EXPECT_EQ(status_of(std::out_of_range("x")), ONEPASS_INTERNAL);
  EXPECT_EQ(status_of(42), ONEPASS_INTERNAL);
}

TEST(status_guard, the_c_function_replaces_the_cpp_call_that_begins_a_message) {
  status_of(InvalidArgument(format_message("forward", "q is missing", "something", "do it")));
  EXPECT_STREQ(last_error(), "onepass_call: q is missing.\n  Allowed: something.\n  Fix: do it.");
  status_of(InvalidArgument("no call before this"));
  EXPECT_STREQ(last_error(), "onepass_call: no call before this");
  status_of(InvalidArgument(""));
  EXPECT_STREQ(last_error(), "onepass_call: ");
}

TEST(status_guard, memory_and_unknown_exceptions_get_messages_of_the_usual_form) {
  status_of(std::bad_alloc());
  EXPECT_THAT(last_error(), AllOf(StartsWith("onepass_call: the system gave no memory"),
                                  HasSubstr("\n  Allowed: "), HasSubstr("\n  Fix: ")));
  status_of(std::out_of_range("index 7"));
  EXPECT_THAT(last_error(),
              AllOf(HasSubstr("unexpected exception was caught (index 7)"), HasSubstr("please report")));
  status_of(42);
  EXPECT_THAT(last_error(), HasSubstr("an exception of unknown type"));
}

TEST(status_guard, success_empties_the_message) {
  status_of(InvalidArgument("x"));
  EXPECT_EQ(guarded("onepass_call", [] {}), ONEPASS_OK);
  EXPECT_STREQ(last_error(), "");
}

TEST(status_guard, each_thread_has_a_message_of_its_own) {
  status_of(InvalidArgument("of the main thread"));
  std::string before, after;
  std::thread([&] {
    before = last_error();
    status_of(InvalidArgument("of the other thread"));
    after = last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "onepass_call: of the other thread");
  EXPECT_STREQ(last_error(), "onepass_call: of the main thread");
}

}  // namespace
}  // namespace onepass::c
