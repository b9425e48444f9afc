#include "python/op_rule_binding.h"

#include <memory>

#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "aten/constants.h"
#include "base/check.h"

namespace stepc {

namespace py = pybind11;

namespace {

// A tensor without memory.
py::object meta_tensor(const TensorType& type) {
  const at::Tensor tensor =
      at::empty(type.shape, at::TensorOptions().device(at::kMeta).dtype(scalar_type_of(type.dtype)));
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

struct ArgObject {
  const OpUse& use;

  py::object operator()(std::monostate) const { return py::none(); }
  py::object operator()(ValueId id) const { return id.valid() ? meta_tensor(use.operands[id.index()]) : py::none(); }
  py::object operator()(const std::vector<ValueId>& ids) const {
    py::list out;
    for (ValueId id : ids) out.append((*this)(id));
    return out;
  }
  py::object operator()(const Symbol& symbol) const { return py::str(symbol.text); }
  py::object operator()(const WrappedNumber& number) const {
    return std::visit([](const auto& one) -> py::object { return py::cast(one); }, number.number);
  }
  py::object operator()(const ReadNumber&) const { return py::none(); }
  py::object operator()(const GeneratorArg&) const { return py::none(); }
  template <class Constant>
  py::object operator()(const Constant& constant) const {
    return py::cast(constant);
  }
};

// A rule of stepc/op_rules.py. It may be let go where the GIL is not held.
class PythonRule {
 public:
  explicit PythonRule(py::object rule)
      : rule_(new py::object(std::move(rule)), [](py::object* held) {
          const py::gil_scoped_acquire gil;
          delete held;
        }) {}

  [[nodiscard]] bool has(const char* part) const { return !rule_->attr(part).is_none(); }
  [[nodiscard]] std::string text(const char* part) const { return rule_->attr(part).cast<std::string>(); }

  // Calls the rule's method with `first`, if there is one, and the call's arguments.
  template <class Result, class... First>
  Result call(const char* method, const OpUse& use, const First&... first) const {
    const py::gil_scoped_acquire gil;
    try {
      py::list arguments;
      for (const Arg& arg : use.args) arguments.append(std::visit(ArgObject{use}, arg));
      return rule_->attr(method)(first..., arguments).template cast<Result>();
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
      throw UserError(py::str(error.value()).cast<std::string>());
    }
  }

  [[nodiscard]] OpRuleParts parts() const {
    OpRuleParts parts;
    const auto amount = [&](const char* what) -> std::function<double(const OpUse&)> {
      if (!has(what)) return {};
      return [rule = *this, what](const OpUse& use) { return rule.call<double>("amount", use, what); };
    };
    parts.flops = amount("flops");
    parts.bytes = amount("bytes");
    parts.sharding = text("sharding");
    if (has("shapes"))
      parts.shapes = [rule = *this](const OpUse& use) { return rule.call<std::vector<Shape>>("result_shapes", use); };
    return parts;
  }

 private:
  std::shared_ptr<py::object> rule_;
};

}  // namespace

OpRules given_op_rules() {
  OpRules rules;
  for (const py::handle& one : py::module_::import("stepc.op_rules").attr("registered")()) {
    const PythonRule given(py::reinterpret_borrow<py::object>(one));
    // Checked when they were given; an operator may be gone by now.
    OpRule& rule = rules.emplace_back(given.text("op"), given.parts(), std::nullopt);
    if (!rule.parts.sharding.empty()) rule.dims = parse_dim_names(rule.parts.sharding);
  }
  return rules;
}

void bind_op_rules(py::module_& module) {
  module.def("check_op_rule", [](const py::object& one) {
    const PythonRule rule(one);
    op_rule(rule.text("op"), rule.parts());
  });
}

}  // namespace stepc
