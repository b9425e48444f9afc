#include "python/segments_binding.h"

#include <memory>

#include <pybind11/stl.h>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "engine/segments.h"
#include "python/in_turn.h"
#include "python/python_program.h"
#include "python/values.h"

namespace stepc {

namespace {

// A forward pass whose backward pass the loop has not finished.
class PythonCall {
 public:
  explicit PythonCall(std::unique_ptr<Segments::Call> call) : call_(std::move(call)) {}
  ~PythonCall() {
    in_turn([&] { call_.reset(); });
  }
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;

  bool is_first() const { return call_->is_first(); }
  int64_t compared() const { return call_->compared(); }
  bool is_timed() const { return call_->is_timed(); }
  py::bytes signature() const { return call_->signature(); }
  py::list parameters() const { return list_of(call_->parameters()); }

  // `eager` returns (tensors, structure), and so does this.
  py::tuple forward(const py::object& eager) {
    const std::vector<at::Tensor> outputs = in_turn([&] {
      return call_->forward([&] {
        const py::gil_scoped_acquire gil;
        const auto result = eager().cast<py::tuple>();
        call_->structure = result[1].cast<int64_t>();
        return tensors_of(result[0].cast<py::list>());
      });
    });
    return py::make_tuple(list_of(outputs), call_->structure);
  }

  // Gradients and results are lists with None where there is none.
  py::list backward(const py::list& gradients, const py::object& eager) {
    return run(&Call::backward, gradients, eager);
  }
  py::list eager_backward(const py::list& gradients, const py::object& eager) {
    return run(&Call::eager_backward, gradients, eager);
  }
  std::string why_not_backward(const py::list& gradients) const {
    return call_->why_not_backward(tensors_of(gradients));
  }
  void leave(const std::string& why) {
    in_turn([&] { call_->leave(why); });
  }
  void leave_recording(const std::string& why, bool is_of_python) {
    in_turn([&] { call_->leave_recording(why, is_of_python); });
  }
  void run_as_before(const py::object& part) {
    in_turn([&] {
      call_->run_as_before([&] {
        const py::gil_scoped_acquire gil;
        part();
      });
    });
  }
  bool is_changed(size_t output) const { return call_->is_changed(output); }

 private:
  using Call = Segments::Call;
  using Backward = std::vector<at::Tensor> (Call::*)(const std::vector<at::Tensor>&, const Segments::BackwardFn&);

  py::list run(Backward backward, const py::list& gradients, const py::object& eager) {
    const std::vector<at::Tensor> incoming = tensors_of(gradients);
    return list_of(in_turn([&] {
      return ((*call_).*backward)(incoming, [&](const std::vector<at::Tensor>& found) {
        const py::gil_scoped_acquire gil;
        return tensors_of(eager(list_of(found)).cast<py::list>());
      });
    }));
  }

  std::unique_ptr<Segments::Call> call_;
};

class PythonSegments {
 public:
  PythonSegments(py::object scout, const py::object& config)
      : PythonSegments(std::make_unique<PythonProgram>(std::move(scout)), config_of(config)) {}
  PythonSegments(std::unique_ptr<PythonProgram> program, Config config)
      : program_(*program), segments_(std::move(program), std::move(config)) {}

  PythonProgram& program() { return program_; }

  // Returns None if the model runs eagerly.
  py::object begin(const py::list& tensors, std::vector<std::string> names, std::string constants) {
    StepInput input{tensors_of(tensors), std::move(names), std::move(constants)};
    auto call = in_turn([&] { return segments_.begin(std::move(input)); });
    if (call == nullptr) return py::none();
    return py::cast(std::make_unique<PythonCall>(std::move(call)));
  }
  void run_eagerly(const std::string& why) {
    in_turn([&] { segments_.run_eagerly(why); });
  }

  void ran_eagerly() { segments_.ran_eagerly(); }
  void took(const std::string& signature, bool as_it_is, double seconds) {
    in_turn([&] { segments_.took(signature, as_it_is, seconds); });
  }
  void leave(const std::string& signature, const std::string& why) {
    in_turn([&] { segments_.leave(signature, why); });
  }

  bool is_traced() const { return segments_.is_traced(); }
  py::dict stats() const { return dict_of(segments_.stats()); }
  std::string report() const { return segments_.report(); }
  std::string graph_text() const { return segments_.graph_text(); }
  std::string schedule_text() const { return segments_.schedule_text(); }

 private:
  PythonProgram& program_;
  Segments segments_;
};

}  // namespace

void bind_segments(py::module_& module) {
  py::class_<PythonSegments>(module, "Segments", collected<PythonSegments>())
      .def(py::init<py::object, const py::object&>())
      .def("begin", &PythonSegments::begin)
      .def("run_eagerly", &PythonSegments::run_eagerly)
      .def("ran_eagerly", &PythonSegments::ran_eagerly)
      .def("took", &PythonSegments::took)
      .def("leave", &PythonSegments::leave)
      .def("is_traced", &PythonSegments::is_traced)
      .def("stats", &PythonSegments::stats)
      .def("report", &PythonSegments::report)
      .def("graph_text", &PythonSegments::graph_text)
      .def("schedule_text", &PythonSegments::schedule_text);
  py::class_<PythonCall>(module, "Call")
      .def("is_first", &PythonCall::is_first)
      .def("compared", &PythonCall::compared)
      .def("is_timed", &PythonCall::is_timed)
      .def("signature", &PythonCall::signature)
      .def("parameters", &PythonCall::parameters)
      .def("forward", &PythonCall::forward)
      .def("backward", &PythonCall::backward)
      .def("eager_backward", &PythonCall::eager_backward)
      .def("why_not_backward", &PythonCall::why_not_backward)
      .def("leave", &PythonCall::leave)
      .def("leave_recording", &PythonCall::leave_recording)
      .def("run_as_before", &PythonCall::run_as_before)
      .def("is_changed", &PythonCall::is_changed);
}

}  // namespace stepc
