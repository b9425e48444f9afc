#include "python/virtual_binding.h"

#include <memory>

#include <pybind11/stl.h>

#include <ATen/Context.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/virtual_device.h"
#include "aten/virtual_memory.h"
#include "base/check.h"
#include "capture/no_observer.h"
#include "capture/virtual/virtual_region.h"
#include "cost/named_target.h"
#include "engine/plan/virtual_plan.h"
#include "plan/target_plan.h"
#include "python/op_rule_binding.h"
#include "python/python_program.h"
#include "python/values.h"

namespace stepc {

namespace {

// `step` returns (tensors, numbers).
VirtualPlan plan(py::object scout, const py::list& batch, const py::object& step) {
  PythonProgram program(std::move(scout));
  const StepInput input{tensors_of(batch), {}, {}};
  const OpRules rules = given_op_rules();
  const py::gil_scoped_release released;
  const NoObserverScope outside;  // of a region
  return plan_virtually(
      program, input,
      [&] {
        const py::gil_scoped_acquire gil;
        const auto result = step().cast<py::tuple>();
        StepOutput output;
        output.tensors = tensors_of(result[0].cast<py::list>());
        for (const py::handle& number : result[1]) output.numbers.push_back(number_of(number));
        return output;
      },
      rules);
}

TargetPlan plan_for(const VirtualPlan& plan, const std::string& target, bool as_recorded) {
  USER_CHECK(plan.obstacle.empty(), "this step runs eagerly: {}", plan.obstacle);
  const Target machine = named_target(target, at::globalContext().allowTF32CuBLAS());
  const py::gil_scoped_release released;
  return plan_for_target(plan.trace, machine, as_recorded);
}

void bind_target_plan(py::module_& module) {
  py::class_<TargetPlan>(module, "TargetPlan")
      .def("schedule_text", &TargetPlan::text)
      .def("report", &TargetPlan::summary)
      .def("memory", [](const TargetPlan& plan) { return plan.memory ? to_text(*plan.memory) : std::string(); })
      .def_property_readonly("seconds", [](const TargetPlan& plan) { return plan.timeline.seconds; })
      .def_property_readonly("needed_bytes", &TargetPlan::needed_bytes)
      .def_property_readonly("target", [](const TargetPlan& plan) { return to_text(plan.target); });
}

// As Python's exception: PyTorch's bindings would hand on a C++ one as a RuntimeError.
void raise_user_error(const std::string& why) {
  const py::gil_scoped_acquire gil;
  const py::object type = py::module_::import("stepc._C").attr("UserError");
  PyErr_SetString(type.ptr(), why.c_str());
  throw py::error_already_set();
}

class OpenRegion {
 public:
  void close() { region_.reset(); }
  void refuse(bool refuses) { region_->run_and_refuse(refuses ? &raise_user_error : nullptr); }

 private:
  std::unique_ptr<VirtualRegion> region_ = std::make_unique<VirtualRegion>();
};

// What torch.cuda tells a program of a card.
py::dict card_of(const std::string& target) {
  const Target machine = named_target(target);
  USER_CHECK(machine.gpu.has_value(), "stepc.virtual(device=\"cuda\"): the target \"{}\" is no GPU", target);
  py::dict card;
  card["name"] = machine.gpu->name;
  card["sm"] = machine.features.sm;
  card["multi_processor_count"] = machine.gpu->multiprocessors;
  card["shared_memory_per_multiprocessor"] = machine.gpu->shared_bytes;
  card["L2_cache_size"] = machine.gpu->l2_bytes;
  card["total_memory"] = machine.gpu->memory_bytes;
  return card;
}

void install_device(int sm) {
  const std::string why = install_virtual_device(sm);
  USER_CHECK(why.empty(), "stepc.virtual(device=\"cuda\") is for machines without a GPU and processes of their own: {}",
             why);
}

}  // namespace

void bind_virtual(py::module_& module) {
  bind_target_plan(module);
  py::class_<VirtualPlan>(module, "VirtualPlan")
      .def_readonly("obstacle", &VirtualPlan::obstacle)
      .def("graph_text", [](const VirtualPlan& plan) { return to_text(plan.trace); })
      .def("report", &VirtualPlan::report)
      .def("plan_for", &plan_for)
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
  py::class_<OpenRegion>(module, "VirtualRegion")
      .def(py::init<>())
      .def("refuse", &OpenRegion::refuse)
      .def("close", &OpenRegion::close);
  module.def("card_of", &card_of);
  module.def("install_virtual_device", &install_device);
  module.def("virtual_generator", &virtual_generator);
  module.def("plan", &plan);
  module.def("is_virtual", py::overload_cast<const at::Tensor&>(&is_virtual));
  module.def("materialise", &materialise);
}

}  // namespace stepc
