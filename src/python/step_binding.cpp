#include "python/step_binding.h"

#include <cstdlib>
#include <memory>

#include <pybind11/stl.h>

#include <ATen/Context.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "comm/ranks.h"
#include "cost/named_target.h"
#include "engine/ranks/data_parallel.h"
#include "engine/ranks/noted.h"
#include "engine/ranks/rank_step.h"
#include "engine/step.h"
#include "python/in_turn.h"
#include "python/python_program.h"
#include "python/values.h"

namespace stepc {

namespace {

class PythonStep {
 public:
  PythonStep(py::object scout, const py::object& config, const py::object& parallel)
      : PythonStep(std::make_unique<PythonProgram>(std::move(scout)), config_on(config, parallel)) {}
  PythonStep(std::unique_ptr<PythonProgram> program, Config config)
      : program_(*program), step_(std::move(program), std::move(config)) {
    static int64_t made = 0;
    number_ = made++;
  }

  PythonProgram& program() { return program_; }

  // `eager` returns (tensors, numbers, seconds of the program's own function). run() returns (tensors, numbers, whether
  // the step is eager from now on). On ranks `eager` gets the tensors to run on. `began`: time.monotonic().
  py::tuple run(const py::list& tensors, std::vector<std::string> names, std::string constants, const py::object& eager,
                double began) {
    const auto since_boot = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(began));
    StepInput input{tensors_of(tensors), std::move(names), std::move(constants), Clock::time_point(since_boot)};
    StepOutput output = in_turn([&] {
      StepOutput made = step_.run(
          input, [&] { return call(eager); },
          [&](const std::vector<at::Tensor>& others) { return call(eager, others); });
      input.tensors.clear();
      return made;
    });
    const py::list out = list_of(output.tensors);
    py::list numbers(output.numbers.size());
    for (size_t i = 0; i < output.numbers.size(); ++i) numbers[i] = object_of(output.numbers[i]);
    return py::make_tuple(out, numbers, step_.is_left_to_eager());
  }
  void ran_eagerly() { step_.ran_eagerly(); }

  bool compile(const py::list& tensors, std::vector<std::string> names, std::string constants,
               const py::object& eager) {
    const StepInput input{tensors_of(tensors), std::move(names), std::move(constants)};
    return in_turn([&] { return step_.compile(input, [&] { return call(eager); }); });
  }
  // Returns an empty string if the steps do not differ.
  std::string difference(const py::list& one, const py::object& step_on_one, const py::list& other,
                         const py::object& step_on_other) {
    return in_turn([&] {
      return step_.difference(
          {tensors_of(one), {}, {}}, [&] { return call(step_on_one); }, {tensors_of(other), {}, {}},
          [&] { return call(step_on_other); });
    });
  }
  bool is_on_ranks() const { return step_.is_on_ranks(); }
  int64_t rank() { return step_.on_ranks().rank(); }
  // The steps' numbers follow the order in which they were made, which is the same on all ranks.
  int64_t number() const { return number_; }
  void gather(const py::list& tensors, bool keeps) {
    const std::vector<at::Tensor> all = tensors_of(tensors);
    in_turn([&] { step_.on_ranks().gather(all, keeps); });
  }
  void scatter(const py::list& tensors, bool takes) {
    const std::vector<at::Tensor> all = tensors_of(tensors);
    in_turn([&] { step_.on_ranks().scatter(all, takes); });
  }
  std::string report_of_all() {
    return in_turn([&] { return step_.on_ranks().report_of_all(); });
  }
  std::string save(const std::string& output, int64_t number, const Companions& companions) {
    return in_turn([&] { return step_.save(output, number, companions).string(); });
  }
  // Returns the checkpoint's directory and step number. `accept` gets the directory.
  std::pair<std::string, int64_t> load(const std::string& from, const py::object& accept) {
    const Checkpoint loaded = in_turn([&] {
      return step_.load(from, [&](const std::filesystem::path& directory) {
        const py::gil_scoped_acquire gil;
        accept(directory.string());
      });
    });
    return {loaded.directory.string(), loaded.state.step};
  }
  // Returns tuples (name, is_of_model, tensor, dimensions that are split or None, this rank's part, whether its stage
  // has it).
  py::list held_tensors() {
    py::list out;
    for (const ProgramParts::HeldTensor& one : in_turn([&] { return step_.on_ranks().held_tensors(); }))
      out.append(py::make_tuple(one.name, one.is_of_model, list_of({one.whole})[0], py::cast(one.split),
                                list_of({one.part})[0], one.is_own));
    return out;
  }
  std::vector<std::pair<std::string, int64_t>> mesh() {
    std::vector<std::pair<std::string, int64_t>> axes;
    for (const MeshAxis& axis : step_.on_ranks().mesh().axes) axes.emplace_back(axis.name, axis.size);
    return axes;
  }
  bool may_rehearse() const { return step_.may_rehearse(); }
  void end_warm_up() { step_.end_warm_up(); }

  py::dict stats() const { return dict_of(step_.stats()); }
  std::string report() const { return step_.report(); }
  std::optional<double> predicted_seconds() const {
    const std::optional<Prediction> prediction = step_.prediction();
    return prediction ? std::optional(prediction->seconds) : std::nullopt;
  }
  std::string memory_text() const { return step_.memory_text(); }
  std::string memory_svg() const { return step_.memory_svg(); }
  void start_profile() { step_.start_profile(); }
  // Returns (table, trace events), or None.
  py::object finish_profile() {
    const std::optional<Profile> profile = in_turn([&] { return step_.finish_profile(); });
    if (!profile) return py::none();
    return py::make_tuple(to_text(*profile), to_trace_events(*profile));
  }
  std::string graph_text() const { return step_.graph_text(); }
  std::string schedule_text() const { return step_.schedule_text(); }
  std::optional<TargetPlan> plan_for(const std::string& target) const {
    const Target machine = named_target(target, at::globalContext().allowTF32CuBLAS());
    const py::gil_scoped_release released;
    return step_.plan_for(machine);
  }

 private:
  static StepOutput call(const py::object& eager, const std::vector<at::Tensor>& tensors = {}) {
    const py::gil_scoped_acquire gil;
    const auto result = eager(*list_of(tensors)).cast<py::tuple>();
    StepOutput output;
    output.tensors = tensors_of(result[0].cast<py::list>());
    for (const py::handle& number : result[1].cast<py::list>()) output.numbers.push_back(number_of(number));
    output.own_seconds = result[2].cast<double>();
    return output;
  }

  PythonProgram& program_;
  Step step_;
  int64_t number_ = 0;
};

void bind_ranks(py::module_& module) {
  py::class_<Ranks, std::shared_ptr<Ranks>>(module, "Ranks")
      .def("rank", &Ranks::rank)
      .def("size", &Ranks::ranks)
      .def("tell",
           [](Ranks& ranks, const std::string& why) {
             const py::gil_scoped_release released;
             leave_and_tell(ranks, why);
           })
      .def("average",
           [](Ranks& ranks, const py::list& tensors, const std::string& which) {
             const std::vector<at::Tensor> all = tensors_of(tensors);
             in_turn([&] { noted(ranks, "averaging gradients", [&] { average(ranks, all, which); }); });
           })
      .def("share",
           [](Ranks& ranks, const py::list& tensors, const std::vector<int64_t>& owners) {
             const std::vector<at::Tensor> all = tensors_of(tensors);
             in_turn([&] { noted(ranks, "sharing values", [&] { share(ranks, all, owners); }); });
           })
      .def("differ", [](Ranks& ranks, const py::list& tensors) {
        const std::vector<at::Tensor> all = tensors_of(tensors);
        return in_turn([&] { return noted(ranks, "comparing models", [&] { return differ(ranks, all); }); });
      });
  module.def("check_mesh", [](const Ranks& ranks, const std::vector<std::pair<std::string, int64_t>>& axes) {
    Parallel parallel;
    for (const auto& [name, size] : axes) parallel.axes.push_back({name, size});
    strategy_of(parallel, ranks.ranks());
  });
  module.def("ranks", [](const py::dict& elastic) {
    const Parallel::Elastic chosen = elastic_of(elastic);
    const py::gil_scoped_release release;
    return ranks_of_process(launch_of(std::getenv), chosen);
  });
  module.def("one_rank", [] { return Ranks::threads(1)[0]; });
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  module.def("ranks_by", [](int64_t rank, int64_t ranks, const StorePtr& store, const py::dict& elastic) {
    const Parallel::Elastic chosen = elastic_of(elastic);
    const py::gil_scoped_release release;
    Launch launch = launch_of(std::getenv);
    // If the launcher did not set these variables, all ranks are on this machine.
    if (launch.ranks != ranks || launch.rank != rank) launch = Launch();
    launch.rank = rank;
    launch.ranks = ranks;
    return ranks_of_process(launch, store, chosen);
  });
}

}  // namespace

void bind_step(py::module_& module) {
  bind_ranks(module);
  py::class_<PythonStep>(module, "Step", collected<PythonStep>())
      .def(py::init<py::object, const py::object&, const py::object&>())
      .def("run", &PythonStep::run)
      .def("ran_eagerly", &PythonStep::ran_eagerly)
      .def("is_on_ranks", &PythonStep::is_on_ranks)
      .def("rank", &PythonStep::rank)
      .def_property_readonly("number", &PythonStep::number)
      .def("gather", &PythonStep::gather)
      .def("scatter", &PythonStep::scatter)
      .def("report_of_all", &PythonStep::report_of_all)
      .def("held_tensors", &PythonStep::held_tensors)
      .def("mesh", &PythonStep::mesh)
      .def("save", &PythonStep::save)
      .def("load", &PythonStep::load)
      .def("compile", &PythonStep::compile)
      .def("difference", &PythonStep::difference)
      .def("may_rehearse", &PythonStep::may_rehearse)
      .def("end_warm_up", &PythonStep::end_warm_up)
      .def("stats", &PythonStep::stats)
      .def("report", &PythonStep::report)
      .def("predicted_seconds", &PythonStep::predicted_seconds)
      .def("memory_text", &PythonStep::memory_text)
      .def("memory_svg", &PythonStep::memory_svg)
      .def("start_profile", &PythonStep::start_profile)
      .def("finish_profile", &PythonStep::finish_profile)
      .def("graph_text", &PythonStep::graph_text)
      .def("schedule_text", &PythonStep::schedule_text)
      .def("plan_for", &PythonStep::plan_for);
}

}  // namespace stepc
