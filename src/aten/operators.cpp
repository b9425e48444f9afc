#include "aten/operators.h"

#include "base/check.h"

namespace stepc {

std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

c10::OperatorHandle find_operator(const std::string& name) {
  const size_t dot = name.find('.', name.find("::"));
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const auto found = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
  USER_CHECK(found.has_value(), "the trace calls {}, which this LibTorch does not have", name);
  return *found;
}

}  // namespace stepc
