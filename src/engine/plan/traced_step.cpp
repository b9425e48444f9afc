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

void HostSupplies::pass_on(Plan& plan, bool has_begun) {
  const Tracer& tracer = plan.tracer();
  for (const std::vector<HostSupply>& all = tracer.supplied(); numbers_ < all.size(); ++numbers_)
    plan.supply(all[numbers_]);
  for (const auto& [key, data] : tracer.host_data())
    if (data_.insert(key).second && has_begun) plan.fill_host_data(key, data);
}

void HostSupplies::clear() {
  numbers_ = 0;
  data_.clear();
}

TracedRun::TracedRun(TracedPlans plans, Program& program, const WhatToRecord& recorded, RunTimes* times)
    : plans_(std::move(plans)),
      program_(program),
      recorded_(recorded),
      times_(times),
      generators_(plan().generators(program)),
      callbacks_{[this](size_t event) { return number_at(reach(event)); },
                 [this](size_t event) { return reach(event).given; },
                 [this] { turn_back(); },
                 [this] { return plans_.other(); },
                 [this] { took_over(); },
                 [this] { return record(); }} {
  keep_undo();
  generators_.insert(generators_.begin(), at::detail::getDefaultCPUGenerator());
  save_generators();
  first_ = &plans_.begin();
  first_->begin(callbacks_, /*computes=*/false);
}

TracedRun::~TracedRun() { release(); }

void TracedRun::release() {
  if (first_ == nullptr) return;
  if (plan().is_paused()) plan().abandon();
  plan().tracer().release();
  first_->release();
  first_ = nullptr;
}

void TracedRun::run(const std::function<void()>& part) { first_->run(part); }

void TracedRun::pause(const std::vector<at::Tensor>& outputs, int64_t structure) {
  first_->pause(outputs, structure);
  if (!difference().empty()) return;
  const StepResult result = reach(plan().tracer().pause_event());
  for (size_t o = 0; o < result.given.size(); ++o) plan().tracer().give(plan().given_at_pause()[o], result.given[o]);
}

void TracedRun::resume(const std::vector<at::Tensor>& incoming) {
  incoming_ = incoming;
  save_generators();
  resumed_ = snapshots_;
  first_->resume(incoming);
}

void TracedRun::leave(const std::string& why, bool records) { plan().tracer().leave(callbacks_, why, records); }

TracedStep TracedRun::finish(StepOutput output) {
  TracedStep traced;
  traced.output = std::move(output);
  first_->end();
  replay_rest(traced);
  traced.plan = plans_.plan();
  traced.departure = plan().tracer().departure();
  if (traced.departure.decided_otherwise.empty()) traced.departure.decided_otherwise = decided_otherwise_;
  release();
  if (recorder_) {
    traced.recording = recorder_->finish(std::exchange(traced.output, {}));
    traced.before = std::move(before_);
  }
  return traced;
}

void TracedRun::keep_undo() {
  undo_.emplace_back(nullptr, plan().written_by_host(plans_.tensors()), std::vector<at::Generator>());
  undo_plan_.emplace(nullptr, plan().written_early(plans_.tensors()), plan().generators(program_));
}

// Undoes the parts of the first plan that have run, and runs the other plan up to the same stop.
void TracedRun::took_over() {
  if (plan().is_paused()) plan().abandon();
  undo_plan_->restore();
  save_generators();
  plans_.took_over();
  keep_undo();
  supplies_.clear();
  has_begun_ = is_at_pause_ = false;
  for (size_t s = std::exchange(stops_, 0); s > 0; --s) {
    const StepResult result = advance();
    INTERNAL_CHECK(result.paused, "two plans with the same calls read differently");
    const HostEvent& event = plan().trace().events[result.event];
    if (event.kind == HostEvent::Kind::kRead && event.own_calls.empty())
      look_at_choice(CallId(event.begin.index() - 1), number_at(result));
  }
  if (!is_at_pause_ || resumed_.empty()) return;
  snapshots_ = resumed_;
  restore_generators();
}

// Checks whether the number that the step got from the other plan decides a branch otherwise.
void TracedRun::look_at_choice(CallId call, const Arg& number) {
  const std::map<size_t, Arg>& given = plan().tracer().numbers();
  const auto then = given.find(call.index());
  if (then != given.end() && are_other_choices(then->second, number))
    decided_otherwise_ = place_of_read(plan().trace(), call);
}

void TracedRun::save_generators() {
  snapshots_.clear();
  for (const at::Generator& generator : generators_)
    snapshots_.push_back(generator.defined() ? std::optional(read_generator(generator)) : std::nullopt);
}
void TracedRun::restore_generators() const {
  for (size_t g = 0; g < generators_.size(); ++g)
    if (snapshots_[g]) write_generator(generators_[g], *snapshots_[g]);
}

// Runs the plan's next part, to a stop or to the end, with random states of its own.
StepResult TracedRun::advance() {
  supplies_.pass_on(plan(), has_begun_);
  USER_CHECK(!plan().is_unfit(), "the host passes another integer than the one that the plan was made for");
  const bool comes_back = is_at_pause_;
  if (comes_back) snapshots_ = resumed_;
  restore_generators();
  const auto begun = Clock::now();
  StepResult result = !has_begun_ ? begin() : plan().resume(comes_back ? incoming_ : std::vector<at::Tensor>());
  execute_seconds_ += seconds_since(begun);
  has_begun_ = true;
  save_generators();
  INTERNAL_CHECK(!result.missed_guard && result.stopped.empty(), "a traced step's plan decides something: {}",
                 result.stopped);
  is_at_pause_ = result.paused && plan().trace().events[result.event].kind == HostEvent::Kind::kPause;
  stops_ += result.paused ? 1 : 0;
  return result;
}

StepResult TracedRun::reach(size_t event) {
  StepResult result = advance();
  INTERNAL_CHECK(result.paused && result.event == event, "the plan comes to another stop than the step");
  return result;
}

StepResult TracedRun::begin() {
  return plan().begin(program_, plan().with_host_data(plans_.tensors(), plan().tracer().host_data()), times_);
}

Recorder* TracedRun::record() {
  if (recorded_.program == nullptr) return nullptr;
  recorder_.emplace(*recorded_.program, plans_.before());
  if (!recorded_.verifies) return &*recorder_;
  before_.tensors = plans_.tensors();
  std::vector<at::Tensor> defined;
  std::ranges::copy_if(before_.tensors, std::back_inserter(defined), &at::Tensor::defined);
  before_.undo = std::make_shared<Undo>(nullptr, std::move(defined), plan().generators(program_));
  return &*recorder_;
}

void TracedRun::turn_back() {
  if (plan().is_paused()) plan().abandon();
  undo_plan_->restore();
  for (size_t u = undo_.size(); u-- > 0;) undo_[u].restore();
}

// Leaves the plan if the program holds memory that the plan does not give to it.
void TracedRun::leave_if_held_beside(const std::vector<ValueId>& given) {
  Tracer& tracer = plan().tracer();
  const ValueId held = tracer.held_beside(given);
  if (!held.valid()) return;
  const Value& value = plan().trace().values[held.index()];
  leave(str("it keeps a {}[{}] tensor that it did not keep while it was recorded", name_of(value.dtype),
            fmt::join(value.sizes, ", ")),
        /*records=*/true);
}

void TracedRun::replay_rest(TracedStep& traced) {
  if (!difference().empty()) return;
  Tracer& tracer = plan().tracer();
  const Trace& trace = plan().trace();
  std::vector<ValueId> given = trace.outputs;
  for (const Rebinding& rebinding : trace.rebindings) given.push_back(rebinding.value);
  for (const bool all : {false, true})
    if (tracer.held_beside(given).valid()) program_.settle(all);  // perhaps by garbage
  leave_if_held_beside(given);
  if (!difference().empty()) return;
  try {
    traced.result = advance();
  } catch (...) {
    leave("its plan ends with an error", /*records=*/false);  // which the step's own calls run into, too
    throw;
  }
  INTERNAL_CHECK(traced.result.is_whole(), "the plan comes to more stops than the step");
  for (size_t o = 0; o < traced.result.outputs.size(); ++o) tracer.give(trace.outputs[o], traced.result.outputs[o]);
  for (size_t r = 0; r < traced.result.rebindings.size(); ++r)
    tracer.give(trace.rebindings[r].value, traced.result.rebindings[r].tensor);
  traced.result.outputs.clear();
  traced.result.rebindings.clear();
  traced.is_replay = true;
  traced.execute_seconds = execute_seconds_;
}

TracedPlans::TracedPlans(const std::list<std::shared_ptr<Plan>>& plans, Program& program,
                         std::vector<at::Tensor> tensors, std::function<bool(const Plan&)> may_follow)
    : plans_(plans.begin(), plans.end()),
      program_(program),
      tensors_(std::move(tensors)),
      may_follow_(std::move(may_follow)),
      followed_(plans_.front()) {
  unfit_ = followed_->why_not(followed_->with_host_data(tensors_));
  // The step itself may drop gradients that no plan reads.
  std::vector<at::Tensor> needed(tensors_.size());
  for (const std::shared_ptr<Plan>& plan : plans_) {
    const std::vector<at::Tensor> read = plan->inputs_among(tensors_);
    for (size_t k = 0; k < read.size(); ++k)
      if (read[k].defined()) needed[k] = read[k];
  }
  for (size_t k = 0; k < program_.keys().size(); ++k)
    if (tensors_[k].defined() && !needed[k].defined())
      dropped_.emplace(k, OwnedBefore(program_.keys()[k].owner, program_.keys()[k].key, tensors_[k]));
  // The host may move a tensor to other memory while the step runs. The plan reads and writes the memory from before
  // the step.
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
  traced.departure.difference = followed.unfit();
  traced.unfit = !followed.unfit().empty();
  if (traced.unfit) return traced;
  TracedRun run(std::move(followed), program, recorded, times);
  StepOutput output;
  run.run([&] { output = step(); });
  return run.finish(std::move(output));
}

}  // namespace stepc
