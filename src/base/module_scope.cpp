#include "base/module_scope.h"

#include <vector>

namespace stepc {
namespace {
// Keeps its capacity, so opening a scope does not allocate once a thread has been this deep.
thread_local std::vector<std::string_view> open_scopes;
}  // namespace

ModuleScope::ModuleScope(std::string_view name) { open_scopes.push_back(name); }
ModuleScope::~ModuleScope() { open_scopes.pop_back(); }

std::string ModuleScope::current() {
  std::string path;
  for (const std::string_view name : open_scopes) {
    if (!path.empty()) path += '.';
    path += name;
  }
  return path;
}

}  // namespace stepc
