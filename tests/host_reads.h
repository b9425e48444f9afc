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
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end).scopes({at::RecordScope::FUNCTION}));
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
  // One call to whoever records: its kernel reads its own learning rate each time it runs.
  static constexpr std::string_view kKernel = "aten::_fused_adamw_";

  static int& kernels_open() {
    static thread_local int count = 0;
    return count;
  }
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& call) {
    if (call.name() == kKernel) ++kernels_open();
    for (const std::string_view name : kReads)
      if (name == call.name() && kernels_open() == 0) found().insert(std::string(name));
    return nullptr;
  }
  static void on_end(const at::RecordFunction& call, at::ObserverContext*) {
    if (call.name() == kKernel) --kernels_open();
  }
  at::CallbackHandle handle_;
};

}  // namespace stepc::test
