#include "base/check.h"

namespace stepc::detail {

void throw_internal(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(
      str("{}:{}: broken promise: {}{}{}", file, line, condition, message.empty() ? "" : ": ", message));
}

}  // namespace stepc::detail
