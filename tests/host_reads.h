// What a captured step must not do: read a tensor's value on the host, or make a shape from values. Collects the names
// of such ATen calls on this thread while it lives.
#pragma once

#include <array>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include <ATen/record_function.h>

namespace stepc::test {

class HostReads {
 public:
  HostReads() {
    found().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          for (const std::string_view name : kReads)
            if (name == call.name()) found().insert(std::string(name));
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~HostReads() { at::removeCallback(handle_); }
  HostReads(const HostReads&) = delete;
  HostReads& operator=(const HostReads&) = delete;

  static std::set<std::string>& found() {
    static thread_local std::set<std::string> names;
    return names;
  }

 private:
  static constexpr std::array<std::string_view, 8> kReads = {"aten::_local_scalar_dense",
                                                             "aten::item",
                                                             "aten::is_nonzero",
                                                             "aten::equal",
                                                             "aten::nonzero",
                                                             "aten::masked_select",
                                                             "aten::repeat_interleave",
                                                             "aten::_unique2"};
  at::CallbackHandle handle_;
};

}  // namespace stepc::test
