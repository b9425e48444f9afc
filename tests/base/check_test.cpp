#include "base/check.h"

#include <string>

#include <gtest/gtest.h>

namespace stepc {
namespace {

template <class Error, class Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(Check, UserErrorIsTheMessageAlone) {
  EXPECT_EQ(message_of<UserError>([] { USER_CHECK(1 > 2, "batch size is {}; give at least {}", 0, 1); }),
            "batch size is 0; give at least 1");
  EXPECT_NO_THROW(USER_CHECK(2 > 1, "never"));
}

TEST(Check, InternalErrorHasPlaceAndCondition) {
  const std::string text = message_of<InternalError>([] { INTERNAL_CHECK(1 > 2, "node {}", 7); });
  EXPECT_NE(text.find("tests/base/check_test.cpp:"), std::string::npos) << text;
  EXPECT_NE(text.find("1 > 2: node 7"), std::string::npos) << text;
}

TEST(Check, ComparisonShowsBothSides) {
  const int two = 2;
  const std::string text = message_of<InternalError>([&] { INTERNAL_CHECK_EQ(two + 1, 4, "sum"); });
  EXPECT_NE(text.find("two + 1 == 4: 3 vs 4; sum"), std::string::npos) << text;
  EXPECT_NO_THROW(INTERNAL_CHECK_LT(two, 3));
  EXPECT_NO_THROW(INTERNAL_CHECK_LE(two, 2));
}

TEST(Check, OperandsAreEvaluatedOnce) {
  int calls = 0;
  INTERNAL_CHECK_EQ(++calls, 1);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace stepc
