// EXPECT_USER_ERROR(statement, "part"): the statement throws UserError, and nothing else, in one line with this part.
#pragma once

#include <exception>
#include <string>

#include <gtest/gtest.h>

#include "base/check.h"

namespace stepc {

template <class Function>
void expect_user_error(const Function& function, const std::string& part, const char* file, int line) {
  const ::testing::ScopedTrace trace(file, line, "expected a UserError with \"" + part + "\"");
  try {
    function();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(part), std::string::npos) << "it says: " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << "more than one line: " << text;
    EXPECT_LT(text.size(), 600U) << text;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception was thrown: " << error.what();
  }
}

}  // namespace stepc

#define EXPECT_USER_ERROR(statement, part) \
  ::stepc::expect_user_error([&] { (void)(statement); }, part, __FILE__, __LINE__)
