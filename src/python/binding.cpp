// The Python module stepc._C: the engine's Step behind stepc.accelerate, and what a recording needs from Python.
#include <cstdlib>
#include <memory>
#include <mutex>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <spdlog/sinks/base_sink.h>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "base/check.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/module_scope.h"
#include "calibrate/calibrate.h"
#include "capture/observer.h"
#include "capture/tracer.h"
#include "comm/ranks.h"
#include "cost/named_target.h"
#include "cost/target_file.h"
#include "engine/ranks/data_parallel.h"
#include "engine/ranks/rank_step.h"
#include "engine/segments.h"
#include "engine/step.h"
#include "python/interpreter.h"
#include "python/op_rule_binding.h"
#include "python/python_program.h"
#include "python/virtual_binding.h"

namespace stepc {
namespace {

// Log lines go to Python's logging, logger "stepc".
class LoggingSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const py::gil_scoped_acquire gil;
    const py::object logger = py::module_::import("logging").attr("getLogger")("stepc");
    const std::string text(message.payload.data(), message.payload.size());
    const int level = static_cast<int>(message.level) * 10;  // debug 10, info 20, warning 30, as in Python
    logger.attr("log")(level, "%s", text);
  }
  void flush_() override {}
};

Arg number_of(const py::handle& number) {
  if (py::isinstance<py::bool_>(number)) return number.cast<bool>();
  if (py::isinstance<py::int_>(number)) return number.cast<int64_t>();
  return number.cast<double>();
}

py::object object_of(const Arg& number) {
  if (const auto* value = std::get_if<bool>(&number)) return py::bool_(*value);
  if (const auto* value = std::get_if<int64_t>(&number)) return py::int_(*value);
  return py::float_(std::get<double>(number));
}

std::vector<at::Tensor> tensors_of(const py::list& list) {
  std::vector<at::Tensor> out;
  out.reserve(list.size());
  for (const py::handle& item : list) out.push_back(item.is_none() ? at::Tensor() : THPVariable_Unpack(item.ptr()));
  return out;
}

py::list list_of(const std::vector<at::Tensor>& tensors) {
  py::list out(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    out[i] = tensors[i].defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[i])) : py::none();
  return out;
}

// A stepc.Config.
Config config_of(const py::object& chosen) {
  const auto text = [&](const char* name) { return chosen.attr(name).cast<std::string>(); };
  Config config;
  config.mode = parse_mode(text("mode"));
  config.capture = parse_capture(text("capture"));
  config.python = parse_python_mode(text("python"));
  config.weighs_pace = parse_pace(text("pace"));
  config.verify = parse_verify(text("verify"));
  config.memory_budget = parse_memory_budget(text("memory_budget"));
  config.kernel_directory = text("kernel_directory");
  config.op_rules = given_op_rules();
  config.device_graphs = chosen.attr("device_graphs").cast<bool>();
  config.max_plans = chosen.attr("max_plans").cast<int>();
  config.max_recordings = chosen.attr("max_recordings").cast<int>();
  return config;
}

// A dict of stepc/ranks.py, or None.
std::optional<Parallel> parallel_of(const py::object& chosen) {
  if (chosen.is_none()) return std::nullopt;
  Parallel parallel;
  for (const auto& [name, size] : chosen["axes"].cast<std::vector<std::pair<std::string, int64_t>>>())
    parallel.axes.push_back({name, size});
  parallel.is_searched = chosen["is_searched"].cast<bool>();
  parallel.zero = chosen["zero"].cast<int>();
  parallel.sequence_parallel = chosen["sequence_parallel"].cast<bool>();
  parallel.means_by_rank = chosen["means_by_rank"].cast<bool>();
  parallel.reduce = parse_reduce(chosen["reduce"].cast<std::string>());
  parallel.context = parse_context(chosen["context"].cast<std::string>());
  parallel.overlap = chosen["overlap"].cast<bool>();
  parallel.micro_batches = chosen["micro_batches"].cast<int64_t>();
  parallel.stages = chosen["stages"].cast<std::vector<std::string>>();
  parallel.order = chosen["order"].cast<std::string>();
  parallel.chunks = chosen["chunks"].cast<int64_t>();
  for (auto& [pattern, dims] :
       chosen["shard"].cast<std::vector<std::pair<std::string, std::map<size_t, std::string>>>>())
    parallel.rules.push_back({pattern, dims});
  parallel.batch = parse_batch(chosen["batch"].cast<std::string>());
  parallel.batch_dims = chosen["batch_dims"].cast<std::map<std::string, std::optional<int64_t>>>();
  parallel.ranks = chosen["ranks"].cast<std::shared_ptr<Ranks>>();
  return parallel;
}

py::dict dict_of(const Stats& s) {
  py::dict out;
  const auto put = [&](const char* name, const auto& value) { out[name] = py::cast(value); };
  put("nodes", s.nodes);
  put("instructions", s.instructions);
  put("guards", s.guards);
  put("arena_bytes", s.arena_bytes);
  put("live_lower_bound_bytes", s.live_lower_bound_bytes);
  put("planned_peak_bytes", s.planned_peak_bytes);
  put("measured_peak_bytes", s.measured_peak_bytes);
  put("eager_peak_bytes", s.eager_peak_bytes);
  put("verification_bytes", s.verification_bytes);
  put("state_bytes", s.state_bytes);
  put("device_graphs", s.device_graphs);
  put("served_allocations", s.served_allocations);
  put("unplanned_allocations", s.unplanned_allocations);
  put("recordings", s.recordings);
  put("replays", s.replays);
  put("recorded_replays", s.recorded_replays);
  put("plain_verifications", s.plain_verifications);
  put("eager_verifications", s.eager_verifications);
  put("float64_verifications", s.float64_verifications);
  put("eager_calls", s.eager_calls);
  put("verifications", s.verifications);
  put("guard_misses", s.guard_misses);
  put("checks", s.checks);
  put("slips", s.slips);
  put("departures", s.departures);
  put("traced", s.traced);
  put("known_updates", s.known_updates);
  put("plans", s.plans);
  put("late_plans", s.late_plans);
  put("graph_nodes", s.graph_nodes);
  put("kernels", s.kernels);
  put("capture_seconds", s.capture_seconds);
  put("settle_seconds", s.settle_seconds);
  put("planning_seconds", s.planning_seconds);
  put("verify_seconds", s.verify_seconds);
  put("shadow_seconds", s.shadow_seconds);
  put("execute_seconds", s.execute_seconds);
  put("auto_budget", s.auto_budget);
  put("verified_with", s.verified_with);
  put("layout_algorithm", s.layout_algorithm);
  put("opaque_calls", s.opaque_calls);
  put("warnings", s.warnings);
  return out;
}

std::recursive_mutex& turns() {
  static std::recursive_mutex mutex;  // a step's own code may call another step
  return mutex;
}

// One call at a time of all steps of the process: a recording marks, and a verification puts back, whatever the step
// reaches, which another thread's step may be using. Taken without the GIL, which the one that runs needs.
template <class Part>
auto in_turn(const Part& part) {
  const py::gil_scoped_release released;
  const std::scoped_lock turn(turns());
  return part();
}

// The program behind an object of ours is seen by Python's garbage collector.
template <class Owner>
py::custom_type_setup collected() {
  return py::custom_type_setup([](PyHeapTypeObject* heap_type) {
    PyTypeObject& type = heap_type->ht_type;
    type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
      Py_VISIT(Py_TYPE(self));
      if (!py::detail::is_holder_constructed(self)) return 0;
      return py::cast<Owner&>(py::handle(self)).program().traverse(visit, arg);
    };
    type.tp_clear = [](PyObject* self) {
      if (py::detail::is_holder_constructed(self)) py::cast<Owner&>(py::handle(self)).program().clear();
      return 0;
    };
  });
}

Config config_on(const py::object& chosen, const py::object& parallel) {
  Config config = config_of(chosen);
  config.parallel = parallel_of(parallel);
  return config;
}

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

  // `eager` returns (tensors, numbers, seconds of the program's own function), and this (tensors, numbers, whether the
  // call was eager's for good); on ranks `eager` is given the tensors that it is to be on. `began`: time.monotonic().
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
  // Empty: none.
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
  // In the order in which steps were made, which is the same on all ranks.
  int64_t number() const { return number_; }
  void gather(const py::list& tensors, bool keeps) {
    const std::vector<at::Tensor> all = tensors_of(tensors);
    in_turn([&] { step_.on_ranks().parts().gather(all, keeps); });
  }
  void scatter(const py::list& tensors, bool takes) {
    const std::vector<at::Tensor> all = tensors_of(tensors);
    in_turn([&] { step_.on_ranks().parts().scatter(all, takes); });
  }
  std::string report_of_all() {
    return in_turn([&] { return step_.on_ranks().report_of_all(); });
  }
  std::string save(const std::string& output, int64_t number, const Companions& companions) {
    return in_turn([&] { return step_.save(output, number, companions).string(); });
  }
  // Its directory, and its number. `accept` gets the directory.
  std::pair<std::string, int64_t> load(const std::string& from, const py::object& accept) {
    const Checkpoint loaded = in_turn([&] {
      return step_.load(from, [&](const std::filesystem::path& directory) {
        const py::gil_scoped_acquire gil;
        accept(directory.string());
      });
    });
    return {loaded.directory.string(), loaded.state.step};
  }
  // (name, is_of_model, tensor, dimensions that are split or None, this rank's part)
  py::list held_tensors() {
    py::list out;
    for (const ProgramParts::HeldTensor& one : in_turn([&] { return step_.on_ranks().parts().held_tensors(); }))
      out.append(py::make_tuple(one.name, one.is_of_model, list_of({one.whole})[0], py::cast(one.split),
                                list_of({one.stretch})[0]));
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
  // (table, trace events), or None.
  py::object finish_profile() {
    const std::optional<Profile> profile = in_turn([&] { return step_.finish_profile(); });
    if (!profile) return py::none();
    return py::make_tuple(to_text(*profile), to_trace_events(*profile));
  }
  std::string graph_text() const { return step_.graph_text(); }
  std::string schedule_text() const { return step_.schedule_text(); }
  std::optional<TargetPlan> plan_for(const std::string& target) const {
    const Target machine = named_target(target);
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

// A forward pass that the loop has not come back from.
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

  // None: the model runs as it is.
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

// What `function` returns, whose calls of operators no recording sees.
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
}  // namespace stepc

PYBIND11_MODULE(_C, module) {
  using namespace stepc;  // NOLINT: the binding of the whole namespace
  py::register_exception<UserError>(module, "UserError", PyExc_RuntimeError);
  py::register_exception<InternalError>(module, "InternalError", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const Interrupt& interrupt) {
      std::rethrow_exception(interrupt.cause());  // the program's own exception, which pybind11 translates itself
    }
  });
  log().sinks() = {std::make_shared<LoggingSink>()};
  log().set_level(spdlog::level::debug);

  module.def("calibrate", [](const std::string& directory, int rounds) {
    const py::gil_scoped_release release;
    std::optional<MeasuringHere> here;
    if (!directory.empty()) here.emplace(directory, at::get_num_threads());
    KernelSources kernels(directory);
    const auto may_be_interrupted = [](const std::string&) {
      const py::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    };
    const Target target = calibrate(kernels, may_be_interrupted, rounds);
    if (!directory.empty()) keep_target(directory, target);
    return rates_table(target);
  });

  py::class_<Ranks, std::shared_ptr<Ranks>>(module, "Ranks")
      .def("rank", &Ranks::rank)
      .def("size", &Ranks::ranks)
      .def("tell",
           [](Ranks& ranks, const std::string& why) {
             const py::gil_scoped_release released;
             ranks.tell(why);
           })
      .def("average",
           [](Ranks& ranks, const py::list& tensors, const std::string& which) {
             const std::vector<at::Tensor> all = tensors_of(tensors);
             in_turn([&] { average(ranks, all, which); });
           })
      .def("share",
           [](Ranks& ranks, const py::list& tensors, const std::vector<int64_t>& owners) {
             const std::vector<at::Tensor> all = tensors_of(tensors);
             in_turn([&] { share(ranks, all, owners); });
           })
      .def("differ", [](Ranks& ranks, const py::list& tensors) {
        const std::vector<at::Tensor> all = tensors_of(tensors);
        return in_turn([&] { return differ(ranks, all); });
      });
  module.def("check_mesh", [](const Ranks& ranks, const std::vector<std::pair<std::string, int64_t>>& axes) {
    Parallel parallel;
    for (const auto& [name, size] : axes) parallel.axes.push_back({name, size});
    strategy_of(parallel, ranks.ranks());
  });
  module.def("ranks", [] {
    const py::gil_scoped_release release;
    return ranks_of_process(launch_of(std::getenv));
  });
  module.def("one_rank", [] { return Ranks::threads(1)[0]; });
  module.def("ranks_by", [](int64_t rank, int64_t ranks, const c10::intrusive_ptr<c10d::Store>& store) {
    const py::gil_scoped_release release;
    Launch launch = launch_of(std::getenv);
    // Not launched by what sets these: then all are on this machine.
    if (launch.ranks != ranks || launch.rank != rank) launch = Launch();
    launch.rank = rank;
    launch.ranks = ranks;
    return ranks_of_process(launch, store);
  });
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
  py::class_<OpenScopes>(module, "Scopes")
      .def(py::init<>())
      .def("open", &OpenScopes::open)
      .def("close", &OpenScopes::close);
  py::class_<OpenEvent>(module, "Event").def(py::init<std::string>()).def("close", &OpenEvent::close);
  module.def("check_config", [](const py::object& config) { check(config_of(config)); });
  module.def("write_file",
             [](const std::string& path, const std::string& text) { write_file_synced(path, std::string_view(text)); });
  module.def("is_recording", &is_recording);
  bind_virtual(module);
  bind_op_rules(module);
  bind_interpreter(module);
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
