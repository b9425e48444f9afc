#include "python/recording_binding.h"

#include <memory>

#include <pybind11/stl.h>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "base/module_scope.h"
#include "capture/observer.h"
#include "capture/recorder.h"
#include "capture/tracer.h"
#include "python/values.h"

namespace stepc {

namespace {

// Scopes that Python's module hooks open and close. Names are kept: a scope holds a view of its own.
class OpenScopes {
 public:
  OpenScopes() = default;
  ~OpenScopes() {
    while (!scopes_.empty()) close();  // innermost first: each scope puts back what it found
  }
  OpenScopes(const OpenScopes&) = delete;
  OpenScopes& operator=(const OpenScopes&) = delete;
  OpenScopes(OpenScopes&&) = delete;
  OpenScopes& operator=(OpenScopes&&) = delete;

  void open(const std::string& name) {
    names_.push_back(std::make_unique<std::string>(name));
    scopes_.push_back(std::make_unique<ModuleScope>(*names_.back(), ModuleScope::Path::kWhole));
  }
  void close() {
    if (scopes_.empty()) return;
    scopes_.pop_back();
    names_.pop_back();
  }

 private:
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<std::unique_ptr<ModuleScope>> scopes_;
};

class OpenEvent {
 public:
  explicit OpenEvent(std::string key) : scope_(std::make_unique<HostEventScope>(std::move(key))) {}
  void close() { scope_.reset(); }

 private:
  std::unique_ptr<HostEventScope> scope_;
};

// Tensor.numpy(), which no recording sees.
py::object array_of(const py::object& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard below_observer(kObserverKey);
  return tensor.attr("numpy")();
}

// Returns the result of `function`, whose operator calls are not recorded.
py::object unobserved(const py::object& function) {
  const c10::impl::ExcludeDispatchKeyGuard below_observer(kObserverKey);
  return function();
}

// `tensor` is made as `stand` was, for autograd: its own graph stays where it is.
void hang(const at::Tensor& tensor, const at::Tensor& stand) {
  namespace impl = torch::autograd::impl;
  const torch::autograd::Edge edge = impl::gradient_edge(stand);
  if (tensor.is_view())  // what its graph is would follow from another tensor's
    tensor.unsafeGetTensorImpl()->set_autograd_meta(std::make_unique<torch::autograd::AutogradMeta>());
  impl::set_gradient_edge(tensor, edge);
}

}  // namespace

void bind_recording(py::module_& module) {
  py::class_<OpenScopes>(module, "Scopes")
      .def(py::init<>())
      .def("open", &OpenScopes::open)
      .def("close", &OpenScopes::close);
  py::class_<OpenEvent>(module, "Event").def(py::init<std::string>()).def("close", &OpenEvent::close);
  module.def("is_recording", &is_recording);
  module.def("has_made", &has_made);
  module.def("held_tensors",
             [] { return current_observer() == nullptr ? py::object(py::none()) : list_of(held_tensors()); });
  module.def("note_made", &note_made);
  module.def("hang", &hang);
  module.def("report_obstacle", &report_obstacle);
  module.def("report_effect", &report_effect);
  module.def("leave_trace", &leave_trace);
  module.def("is_tracing", &is_tracing);
  module.def("array_of", &array_of);
  module.def("unobserved", &unobserved);
  module.def("show_memory", [](const at::Tensor& tensor, const py::buffer& values) {
    return show_memory(tensor, values.request().ptr);
  });
  module.def("hide_memory", &hide_memory);
  module.def("host_reads_so_far", &host_reads_so_far);
  module.def("report_comparison", &report_comparison);
}

}  // namespace stepc
