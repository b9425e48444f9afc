#include "engine/plan/traced_step.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "aten/generator_snapshot.h"
#include "base/check.h"
#include "base/clock.h"
#include "engine/program/undo.h"

namespace stepc {

namespace {

class Run {
 public:
  Run(TracedPlans plans, Program& program, const WhatToRecord& recorded, RunTimes* times)
      : plans_(std::move(plans)),
        program_(program),
        recorded_(recorded),
        times_(times),
        generators_(plan().generators(program)) {
    undo_.emplace_back(nullptr, plan().written_by_host(plans_.tensors()), std::vector<at::Generator>());
    undo_plan_.emplace(nullptr, plan().written_early(plans_.tensors()), generators_);
    generators_.insert(generators_.begin(), at::detail::getDefaultCPUGenerator());
    save_generators();
  }

  TracedStep operator()(const std::function<StepOutput()>& step) {
    TracedStep traced;
    const Tracer::Plan host = {[&](size_t event) { return number_at(reach(event)); },
                               [&](size_t event) { return reach(event).given; },
                               [&] { turn_back(); },
                               [&] { return plans_.other(); },
                               [&] { took_over(); },
                               [&] { return record(); }};
    Tracer& first = plans_.begin();
    try {
      first.run([&] { traced.output = step(); }, host);
      finish(host, traced);
    } catch (...) {
      plan().tracer().release();
      first.release();
      throw;
    }
    traced.plan = plans_.plan();
    traced.difference = plan().tracer().difference();
    traced.raised = plan().tracer().raised();
    traced.is_reseeded = plan().tracer().is_reseeded();
    traced.decided = plan().tracer().decided();
    traced.decided_otherwise = plan().tracer().decided_otherwise();
    if (traced.decided_otherwise.empty()) traced.decided_otherwise = decided_otherwise_;
    plan().tracer().release();
    first.release();
    if (recorder_) {
      traced.recording = recorder_->finish(std::exchange(traced.output, {}));
      traced.before = std::move(before_);
    }
    return traced;
  }

 private:
  Plan& plan() { return *plans_.plan(); }

  // What the first plan's parts have done is undone, and the other one runs up to where they were.
  void took_over() {
    if (plan().is_paused()) plan().abandon();
    undo_plan_->restore();
    save_generators();
    plans_.took_over();
    undo_.emplace_back(nullptr, plan().written_by_host(plans_.tensors()), std::vector<at::Generator>());
    undo_plan_.emplace(nullptr, plan().written_early(plans_.tensors()), plan().generators(program_));
    supplied_ = 0;
    filled_.clear();
    has_begun_ = false;
    for (size_t r = 0; r < reads_; ++r) {
      const StepResult result = advance();
      INTERNAL_CHECK(result.paused, "two plans with the same calls read differently");
      const HostEvent& event = plan().trace().events[result.event];
      if (event.own_calls.empty()) look_at_choice(CallId(event.begin.index() - 1), number_at(result));
    }
  }

  // The step has gone on with the other plan's number.
  void look_at_choice(CallId call, const Arg& number) {
    const std::map<size_t, Arg>& given = plan().tracer().numbers();
    const auto then = given.find(call.index());
    if (then != given.end() && are_other_choices(then->second, number))
      decided_otherwise_ = place_of_read(plan().trace(), call);
  }

  void supply() {
    const std::vector<HostSupply>& all = plan().tracer().supplied();
    for (; supplied_ < all.size(); ++supplied_) plan().supply(all[supplied_]);
    for (const auto& [key, data] : plan().tracer().host_data())
      if (filled_.insert(key).second && has_begun_) plan().fill_host_data(key, data);
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
    USER_CHECK(!plan().is_unfit(), "the host passes another integer than the one that the plan was made for");
    restore_generators();
    const auto begun = Clock::now();
    StepResult result = has_begun_ ? plan().go_on() : begin();
    execute_seconds_ += seconds_since(begun);
    has_begun_ = true;
    save_generators();
    INTERNAL_CHECK(!result.missed_guard && result.stopped.empty(), "a traced step's plan decides something: {}",
                   result.stopped);
    return result;
  }

  StepResult reach(size_t event) {
    StepResult result = advance();
    ++reads_;
    INTERNAL_CHECK(result.paused && result.event == event, "the plan comes to another read than the step");
    return result;
  }

  StepResult begin() {
    return plan().begin(program_, plan().with_host_data(plans_.tensors(), plan().tracer().host_data()), times_);
  }

  Recorder* record() {
    if (recorded_.program == nullptr) return nullptr;
    recorder_.emplace(*recorded_.program, plans_.before());
    if (!recorded_.verifies) return &*recorder_;
    before_.tensors = plans_.tensors();
    std::vector<at::Tensor> defined;
    std::ranges::copy_if(before_.tensors, std::back_inserter(defined), &at::Tensor::defined);
    before_.undo = std::make_shared<Undo>(nullptr, std::move(defined), plan().generators(program_));
    return &*recorder_;
  }

  void turn_back() {
    if (plan().is_paused()) plan().abandon();
    undo_plan_->restore();
    for (size_t u = undo_.size(); u-- > 0;) undo_[u].restore();
  }

  void finish(const Tracer::Plan& host, TracedStep& traced) {
    Tracer& tracer = plan().tracer();
    if (!tracer.difference().empty()) return;
    const Trace& trace = plan().trace();
    std::vector<ValueId> given = trace.outputs;
    for (const Rebinding& rebinding : trace.rebindings) given.push_back(rebinding.value);
    for (const bool all : {false, true})
      if (tracer.held_beside(given).valid()) program_.settle(all);  // perhaps by garbage
    if (const ValueId held = tracer.held_beside(given); held.valid()) {
      const Value& value = trace.values[held.index()];
      return tracer.leave(host,
                          str("it keeps a {}[{}] tensor that it did not keep while it was recorded",
                              name_of(value.dtype), fmt::join(value.sizes, ", ")),
                          /*records=*/true);
    }
    try {
      traced.result = advance();
    } catch (...) {
      tracer.leave(host, "its plan ends with an error", /*records=*/false);  // which the step's own calls run into, too
      throw;
    }
    INTERNAL_CHECK(traced.result.is_whole(), "the plan reads more numbers than the step");
    for (size_t o = 0; o < traced.result.outputs.size(); ++o) tracer.give(trace.outputs[o], traced.result.outputs[o]);
    for (size_t r = 0; r < traced.result.rebindings.size(); ++r)
      tracer.give(trace.rebindings[r].value, traced.result.rebindings[r].tensor);
    traced.result.outputs.clear();
    traced.result.rebindings.clear();
    traced.is_replay = true;
    traced.execute_seconds = execute_seconds_;
  }

  TracedPlans plans_;
  Program& program_;
  WhatToRecord recorded_;
  RunTimes* times_;
  std::vector<at::Generator> generators_;
  std::vector<Undo> undo_;                                   // of what the host writes
  std::optional<Undo> undo_plan_;                            // of what the plan does
  std::vector<std::optional<GeneratorSnapshot>> snapshots_;  // by generator, as the plan left them
  size_t supplied_ = 0;
  std::set<std::string> filled_;  // the host's data that the plan has
  size_t reads_ = 0;
  bool has_begun_ = false;
  double execute_seconds_ = 0;
  std::string decided_otherwise_;
  std::optional<Recorder> recorder_;
  BeforeStep before_;
};

}  // namespace

TracedPlans::TracedPlans(const std::list<std::shared_ptr<Plan>>& plans, Program& program,
                         std::vector<at::Tensor> tensors, std::function<bool(const Plan&)> may_follow)
    : plans_(plans.begin(), plans.end()),
      program_(program),
      tensors_(std::move(tensors)),
      may_follow_(std::move(may_follow)),
      followed_(plans_.front()) {
  unfit_ = followed_->why_not(followed_->with_host_data(tensors_));
  // Gradients that no plan reads are the step's own to drop.
  std::vector<at::Tensor> needed(tensors_.size());
  for (const std::shared_ptr<Plan>& plan : plans_) {
    const std::vector<at::Tensor> read = plan->inputs_among(tensors_);
    for (size_t k = 0; k < read.size(); ++k)
      if (read[k].defined()) needed[k] = read[k];
  }
  for (size_t k = 0; k < program_.keys().size(); ++k)
    if (tensors_[k].defined() && !needed[k].defined())
      dropped_.emplace(k, OwnedBefore(program_.keys()[k].owner, program_.keys()[k].key, tensors_[k]));
  // The host may give any of them other memory while the step runs: what the plan reads and writes is what lay there.
  for (at::Tensor& tensor : needed)
    if (tensor.defined()) tensor = tensor.variable_data();
  tensors_ = std::move(needed);
}

std::vector<OwnedBefore> TracedPlans::before() const {
  std::vector<OwnedBefore> out;
  const std::vector<OwnedKey>& keys = program_.keys();
  for (size_t k = 0; k < tensors_.size(); ++k) {
    const auto dropped = dropped_.find(k);
    if (dropped != dropped_.end())
      out.push_back(dropped->second);
    else if (k < keys.size())
      out.emplace_back(keys[k].owner, keys[k].key, tensors_[k]);
    else
      out.emplace_back(Owner::kBatch, str("{}", k - keys.size()), tensors_[k]);
  }
  return out;
}

Tracer& TracedPlans::begin() {
  followed_->tracer().bind(followed_->externals(tensors_), followed_->generators(program_));
  return followed_->tracer();
}

Tracer* TracedPlans::other() {
  while (next_ < plans_.size()) {
    offered_ = plans_[next_++];
    if (!may_follow_(*offered_) || !offered_->why_not(offered_->with_host_data(tensors_)).empty()) continue;
    offered_->tracer().bind(offered_->externals(tensors_), offered_->generators(program_));
    return &offered_->tracer();
  }
  return nullptr;
}

TracedStep run_traced(const std::list<std::shared_ptr<Plan>>& plans, Program& program, std::vector<at::Tensor>& tensors,
                      const std::function<bool(const Plan&)>& may_follow, const std::function<StepOutput()>& step,
                      const WhatToRecord& recorded, RunTimes* times) {
  TracedPlans followed(plans, program, std::exchange(tensors, {}), may_follow);
  TracedStep traced;
  traced.plan = followed.plan();
  traced.difference = followed.unfit();
  traced.unfit = !traced.difference.empty();
  if (traced.unfit) return traced;
  Run run(std::move(followed), program, recorded, times);
  return run(step);
}

}  // namespace stepc
