// Interrupt: someone outside wants the program to end (KeyboardInterrupt, SystemExit) while the step runs host code of
// its own. It is no error: deliberately not a std::exception, so that it passes whoever turns errors into answers, and
// the door gives the program its own exception back.
#pragma once

#include <exception>
#include <utility>

namespace stepc {

class Interrupt {
 public:
  explicit Interrupt(std::exception_ptr cause) : cause_(std::move(cause)) {}
  [[nodiscard]] const std::exception_ptr& cause() const { return cause_; }

 private:
  std::exception_ptr cause_;
};

}  // namespace stepc
