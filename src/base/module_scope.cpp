#include "base/module_scope.h"

#include <utility>
#include <vector>

namespace stepc {
namespace {
// Keeps its capacity, so opening a scope does not allocate once a thread has been this deep.
thread_local std::vector<std::pair<std::string_view, ModuleScope::Path>> open_scopes;
}  // namespace

ModuleScope::ModuleScope(std::string_view name, Path path) { open_scopes.emplace_back(name, path); }
ModuleScope::~ModuleScope() { open_scopes.pop_back(); }

std::string ModuleScope::current() {
  std::string path;
  for (const auto& [name, kind] : open_scopes) {
    if (kind == Path::kWhole) path.clear();
    if (!path.empty()) path += '.';
    path += name;
  }
  return path;
}

}  // namespace stepc
