// The path of the module whose forward is running on this thread ("model.layers.0.self_attn"): models open a
// scope in each forward, the recorder reads the path. A scope keeps a view of its name, so the name must outlive it.
#pragma once

#include <string>
#include <string_view>

namespace stepc {

class ModuleScope {
 public:
  // kPart: the name is put after those of the open scopes. kWhole: it is the path from the root.
  enum class Path : bool { kPart, kWhole };
  explicit ModuleScope(std::string_view name, Path path = Path::kPart);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  // The open scopes of this thread, outermost first, joined by dots; empty outside of all.
  static std::string current();
};

}  // namespace stepc
