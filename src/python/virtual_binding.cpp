#include "python/virtual_binding.h"

#include <memory>

#include <pybind11/stl.h>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/virtual_memory.h"
#include "capture/virtual/virtual_region.h"
#include "engine/plan/virtual_plan.h"
#include "python/op_rule_binding.h"
#include "python/python_program.h"

namespace stepc {

namespace {

std::vector<at::Tensor> tensors_of(const py::handle& list) {
  std::vector<at::Tensor> out;
  for (const py::handle& item : list) out.push_back(THPVariable_Unpack(item.ptr()));
  return out;
}

Arg number_of(const py::handle& number) {
  if (py::isinstance<py::bool_>(number)) return number.cast<bool>();
  if (py::isinstance<py::int_>(number)) return number.cast<int64_t>();
  return number.cast<double>();
}

// `step` returns (tensors, numbers).
VirtualPlan plan(py::object scout, const py::list& batch, const py::object& step) {
  PythonProgram program(std::move(scout));
  const StepInput input{tensors_of(batch), {}, {}};
  const OpRules rules = given_op_rules();
  const py::gil_scoped_release released;
  return plan_virtually(
      program, input,
      [&] {
        const py::gil_scoped_acquire gil;
        const auto result = step().cast<py::tuple>();
        StepOutput output;
        output.tensors = tensors_of(result[0]);
        for (const py::handle& number : result[1]) output.numbers.push_back(number_of(number));
        return output;
      },
      rules);
}

class OpenRegion {
 public:
  void close() { region_.reset(); }

 private:
  std::unique_ptr<VirtualRegion> region_ = std::make_unique<VirtualRegion>();
};

}  // namespace

void bind_virtual(py::module_& module) {
  py::class_<VirtualPlan>(module, "VirtualPlan")
      .def_readonly("obstacle", &VirtualPlan::obstacle)
      .def("graph_text", [](const VirtualPlan& plan) { return to_text(plan.trace); })
      .def("report", &VirtualPlan::report)
      .def("stats", [](const VirtualPlan& plan) {
        py::dict out;
        out["calls"] = plan.calls;
        out["parameters"] = plan.parameters;
        out["parameter_bytes"] = plan.parameter_bytes;
        out["buffer_bytes"] = plan.buffer_bytes;
        out["optimizer_bytes"] = plan.optimizer_bytes;
        out["state_bytes"] = plan.state_bytes();
        out["step_bytes_lower_bound"] = plan.step_bytes_lower_bound;
        out["recordings"] = plan.recordings;
        out["seconds"] = plan.seconds;
        return out;
      });
  py::class_<OpenRegion>(module, "VirtualRegion").def(py::init<>()).def("close", &OpenRegion::close);
  module.def("plan", &plan);
  module.def("is_virtual", py::overload_cast<const at::Tensor&>(&is_virtual));
  module.def("materialise", &materialise);
}

}  // namespace stepc
