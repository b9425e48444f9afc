// Errors of stepc: two kinds, thrown as exceptions. UserError says what was wrong, the value seen and what to do, in
// one line; InternalError is a broken promise of stepc itself and carries the file, the line and both sides of a
// comparison.
#pragma once

#include <stdexcept>
#include <string>

#include "base/text.h"

namespace stepc {

// Bad input: a file, a flag, a config key, a model, a peer. The CLI prints it in one line.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken promise of stepc. Nobody catches this except to add where it happened.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void throw_internal(const char* file, int line, const char* condition, const std::string& message);

template <class A, class B>
[[noreturn]] void throw_comparison(const char* file, int line, const char* condition, const A& a, const B& b,
                                   const std::string& message) {
  throw_internal(file, line, condition, str("{} vs {}{}{}", a, b, message.empty() ? "" : "; ", message));
}
inline std::string message() { return {}; }
template <class... Args>
std::string message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}
}  // namespace detail

// Throws UserError with a formatted message.
template <class... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace stepc

// USER_CHECK(condition, "format", args...): input from outside.
#define USER_CHECK(condition, ...)                      \
  do {                                                  \
    if (!(condition)) ::stepc::user_error(__VA_ARGS__); \
  } while (false)

// INTERNAL_CHECK(condition[, "format", args...]), INTERNAL_CHECK_EQ(a, b[, ...]) and so on: our own promises. (Not
// CHECK: LibTorch's logging header defines that name.)
#define INTERNAL_CHECK(condition, ...)                                                                        \
  do {                                                                                                        \
    if (!(condition))                                                                                         \
      ::stepc::detail::throw_internal(__FILE__, __LINE__, #condition, ::stepc::detail::message(__VA_ARGS__)); \
  } while (false)
#define INTERNAL_CHECK_OP_(op, a, b, ...)                                                          \
  do {                                                                                             \
    const auto& check_a_ = (a);                                                                    \
    const auto& check_b_ = (b);                                                                    \
    if (!(check_a_ op check_b_))                                                                   \
      ::stepc::detail::throw_comparison(__FILE__, __LINE__, #a " " #op " " #b, check_a_, check_b_, \
                                        ::stepc::detail::message(__VA_ARGS__));                    \
  } while (false)
#define INTERNAL_CHECK_EQ(a, b, ...) INTERNAL_CHECK_OP_(==, a, b __VA_OPT__(, ) __VA_ARGS__)
#define INTERNAL_CHECK_LT(a, b, ...) INTERNAL_CHECK_OP_(<, a, b __VA_OPT__(, ) __VA_ARGS__)
#define INTERNAL_CHECK_LE(a, b, ...) INTERNAL_CHECK_OP_(<=, a, b __VA_OPT__(, ) __VA_ARGS__)
