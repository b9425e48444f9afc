#include "engine/traced_step.h"

#include <optional>
#include <utility>

#include "aten/generator_snapshot.h"
#include "base/check.h"
#include "engine/undo.h"

namespace stepc {

namespace {

class Run {
 public:
  Run(Plan& plan, Program& program, std::vector<at::Tensor> tensors, RunTimes* times)
      : plan_(plan),
        program_(program),
        tensors_(std::move(tensors)),
        times_(times),
        generators_(plan.generators(program)),
        undo_(nullptr, plan.written_early(tensors_), generators_) {
    generators_.insert(generators_.begin(), at::detail::getDefaultCPUGenerator());
    save_generators();
  }

  TracedStep operator()(const std::function<StepOutput()>& step) {
    TracedStep traced;
    Tracer& tracer = plan_.tracer();
    const Tracer::Plan host = {[&](size_t event) { return read(event); }, [&] { turn_back(); }};
    tracer.bind(plan_.externals(tensors_), plan_.generators(program_));
    tensors_ = plan_.inputs_among(std::move(tensors_));
    try {
      tracer.run([&] { traced.output = step(); }, host);
      finish(host, traced);
    } catch (...) {
      tracer.release();
      throw;
    }
    traced.difference = tracer.difference();
    tracer.release();
    return traced;
  }

 private:
  void supply() {
    const std::vector<HostSupply>& all = plan_.tracer().supplied();
    for (; supplied_ < all.size(); ++supplied_) plan_.supply(all[supplied_]);
  }

  void save_generators() {
    snapshots_.clear();
    for (const at::Generator& generator : generators_)
      snapshots_.push_back(generator.defined() ? std::optional(read_generator(generator)) : std::nullopt);
  }
  void restore_generators() const {
    for (size_t g = 0; g < generators_.size(); ++g)
      if (snapshots_[g]) write_generator(generators_[g], *snapshots_[g]);
  }

  // The plan's next part: to a read, or to the end. Its random states are its own.
  StepResult advance() {
    supply();
    USER_CHECK(!plan_.is_unfit(), "the host passes another integer than the one that the plan was made for");
    restore_generators();
    StepResult result = has_begun_ ? plan_.go_on() : plan_.begin(program_, tensors_, times_);
    has_begun_ = true;
    save_generators();
    INTERNAL_CHECK(!result.missed_guard && result.stopped.empty(), "a traced step's plan decides something: {}",
                   result.stopped);
    return result;
  }

  Arg read(size_t event) {
    const StepResult result = advance();
    INTERNAL_CHECK(result.paused && result.event == event, "the plan comes to another read than the step");
    if (result.given.empty()) return result.read;
    const at::Tensor& value = result.given.front();
    if (value.scalar_type() == at::kBool) return value.item<bool>();
    if (at::isIntegralType(value.scalar_type(), /*includeBool=*/false)) return value.item<int64_t>();
    return value.item<double>();
  }

  void turn_back() {
    if (plan_.is_paused()) plan_.abandon();
    undo_.restore();
  }

  void finish(const Tracer::Plan& host, TracedStep& traced) {
    Tracer& tracer = plan_.tracer();
    if (!tracer.difference().empty()) return;
    std::vector<ValueId> given = plan_.trace().outputs;
    for (const Rebinding& rebinding : plan_.trace().rebindings) given.push_back(rebinding.value);
    if (tracer.held_beside(given).valid()) program_.settle();  // perhaps by garbage
    if (const ValueId held = tracer.held_beside(given); held.valid()) {
      const Value& value = plan_.trace().values[held.index()];
      return tracer.leave(host, str("it keeps a {}[{}] tensor that it did not keep while it was recorded",
                                    name_of(value.dtype), fmt::join(value.sizes, ", ")));
    }
    try {
      traced.result = advance();
    } catch (...) {
      tracer.leave(host, "its plan ends with an error");  // which the step's own calls run into, too
      throw;
    }
    INTERNAL_CHECK(traced.result.is_whole(), "the plan reads more numbers than the step");
    for (size_t o = 0; o < traced.result.outputs.size(); ++o)
      tracer.give(plan_.trace().outputs[o], traced.result.outputs[o]);
    for (size_t r = 0; r < traced.result.rebindings.size(); ++r)
      tracer.give(plan_.trace().rebindings[r].value, traced.result.rebindings[r].tensor);
    traced.result.outputs.clear();
    traced.result.rebindings.clear();
    traced.is_replay = true;
  }

  Plan& plan_;
  Program& program_;
  std::vector<at::Tensor> tensors_;
  RunTimes* times_;
  std::vector<at::Generator> generators_;
  Undo undo_;
  std::vector<std::optional<GeneratorSnapshot>> snapshots_;  // by generator, as the plan left them
  size_t supplied_ = 0;
  bool has_begun_ = false;
};

}  // namespace

TracedStep run_traced(Plan& plan, Program& program, std::vector<at::Tensor>& tensors,
                      const std::function<StepOutput()>& step, RunTimes* times) {
  TracedStep traced;
  traced.difference = plan.why_not(tensors);
  traced.unfit = !traced.difference.empty();
  if (traced.unfit) return traced;
  Run run(plan, program, std::exchange(tensors, {}), times);
  return run(step);
}

}  // namespace stepc
