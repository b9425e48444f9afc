#include "engine/plan/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/constants.h"
#include "aten/memory_regions.h"
#include "base/check.h"
#include "base/clock.h"
#include "engine/compare/sketch.h"
#include "ir/agree.h"
#include "plan/unordered_sums.h"

namespace stepc {

namespace {
constexpr size_t kNoPlace = SIZE_MAX;

const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Whatever else of the program's lies in the memory of those: a trace names each storage by the first.
void add_neighbours(const std::vector<at::Tensor>& tensors, std::vector<size_t>& places) {
  std::set<const void*> memory;
  for (size_t place : places)
    if (place < tensors.size()) memory.insert(memory_of(tensors[place]));
  memory.erase(nullptr);
  const std::set<size_t> chosen(places.begin(), places.end());
  for (size_t place = 0; place < tensors.size(); ++place)
    if (memory.contains(memory_of(tensors[place])) && !chosen.contains(place)) places.push_back(place);
}
}  // namespace

SavedGradients::SavedGradients(const std::vector<OwnedKey>& keys, const std::vector<at::Tensor>& tensors) {
  for (size_t k = 0; k < keys.size(); ++k)
    if (keys[k].owner == Owner::kParameter) gradients_.emplace_back(tensors[k], tensors[k].grad());
}
void SavedGradients::restore() const {
  for (const auto& [parameter, gradient] : gradients_) set_gradient(parameter, gradient);
}

Plan::Plan(Trace recorded, Trace agreed, const Program& program, const std::vector<at::Tensor>& tensors,
           const PlanOptions& options)
    : recorded_(std::move(recorded)), trace_(std::move(agreed)), raising_(trace_), options_(options) {
  find_places(program);
  find_sources(program, tensors);
  find_host_data(tensors.size());
  if (options.kernels != nullptr) compile_graph();
  if (fast_ == nullptr) exact();
  unordered_ = adds_in_any_order(trace_, at::globalContext().deterministicAlgorithms());
  find_undo(tensors);
  if (options.is_traced)
    tracer_ = std::make_unique<Tracer>(trace_);
  else
    prepare_events(program);
}

bool Plan::has_narrow() const {
  if (graph() != nullptr) return graph()->narrow;
  return std::ranges::any_of(trace_.values,
                             [](const Value& value) { return is_floating(value.dtype) && size_of(value.dtype) < 4; });
}

CompileOptions Plan::compile_options() const {
  CompileOptions options{options_.known.target, options_.budget};
  options.target.threads = options_.threads;
  return options;
}

void Plan::compile_graph() {
  try {
    Compiled compiled = compile_fast(trace_, *options_.kernels, compile_options());
    weighed_ = compiled.weighed;
    if (is_virtual()) fused_ = std::move(compiled.graph);
    fast_ = road_of(std::move(compiled));
  } catch (const UserError& error) {
    why_exact_ = error.what();
  } catch (const std::exception& error) {
    why_exact_ = str("a fault of stepc: {}", error.what());
    has_fault_ = true;
  }
}

Plan::Road& Plan::exact() {
  if (exact_ == nullptr) {
    USER_CHECK(options_.capture == Capture::kRun, "a step that was never run has no recorded calls to replay: {}",
               why_exact_);
    exact_ = road_of(compile_exact(trace_, options_.threads, options_.device_graphs));
    for (EventRun& run : events_)
      if (run.update != nullptr) run.update->set_stale();
    for (const HostSupply& one : supplied_) exact_->executor->supply(one.call, one.arg, one.number);
  }
  return *exact_;
}

std::unique_ptr<Plan::Road> Plan::road_of(Compiled compiled) {
  planning_seconds_ += compiled.seconds;
  auto road = std::make_unique<Road>();
  road->executor = std::move(compiled.executor);
  road->plan = std::move(compiled.plan);
  for (const ScheduleInput& input : road->executor->schedule().inputs) {
    if (!is_of_program(input.kind) || input.kind == InputKind::kIncoming)
      road->inputs.push_back(kNoPlace);
    else if (input.kind == InputKind::kBatch)
      road->inputs.push_back(batch_place_ + static_cast<size_t>(std::stoul(input.key)));
    else if (input.kind == InputKind::kHost)
      road->inputs.push_back(host_data_.at(input.key).first);
    else
      road->inputs.push_back(places_.at({*owner_of(input.kind), input.key}));
  }
  const std::vector<Instruction>& instructions = road->executor->schedule().instructions;
  for (size_t i = 0; i < instructions.size(); ++i)
    if (raising_.include(instructions[i])) road->raises_before = i + 1;
  return road;
}

void Plan::find_places(const Program& program) {
  const std::vector<OwnedKey>& keys = program.keys();
  for (size_t k = 0; k < keys.size(); ++k) places_[{keys[k].owner, keys[k].key}] = k;
  batch_place_ = keys.size();
  for (size_t k = 0; k < keys.size(); ++k) {
    if (keys[k].owner != Owner::kParameter) continue;
    parameters_.push_back(k);
    gradients_.push_back(places_.at({Owner::kGradient, keys[k].key}));
    parameter_keys_.push_back(keys[k].key);
  }
  std::set<std::string> read;
  for (const External& external : trace().externals) {
    if (external.owner == Owner::kGradient) read.insert(external.key);
    if (external.owner == Owner::kConstant || external.owner == Owner::kIncoming || external.owner == Owner::kHost) {
      externals_.push_back(kNoPlace);
    } else if (external.owner == Owner::kBatch) {
      externals_.push_back(keys.size() + static_cast<size_t>(std::stoul(external.key)));
    } else {
      const auto found = places_.find({external.owner, external.key});
      INTERNAL_CHECK(found != places_.end(), "{} '{}' is gone", name_of(external.owner), external.key);
      externals_.push_back(found->second);
    }
  }
  for (const Rebinding& rebinding : trace().rebindings) {
    if (rebinding.owner != Owner::kGradient || read.count(rebinding.key) != 0) continue;
    const auto found = std::find(parameter_keys_.begin(), parameter_keys_.end(), rebinding.key);
    if (found != parameter_keys_.end()) dropped_.push_back(static_cast<size_t>(found - parameter_keys_.begin()));
  }
}

// Tensors beside the parameters that may come to require a gradient, which the recorded backward pass then has not got.
void Plan::find_sources(const Program& program, const std::vector<at::Tensor>& tensors) {
  const std::vector<OwnedKey>& keys = program.keys();
  for (size_t place : externals_) {
    if (place >= keys.size() || !tensors[place].defined()) continue;
    if (keys[place].owner != Owner::kBuffer && keys[place].owner != Owner::kCaptured) continue;
    sources_.push_back({place, keys[place].key, tensors[place].requires_grad(), tensors[place].is_leaf()});
  }
}

// What a step makes and keeps has a graph where it ran as it is, and none where it was replayed: that is no difference.
std::string Plan::changed_source(const std::vector<at::Tensor>& tensors) const {
  for (const Source& source : sources_) {
    const at::Tensor& now = tensors[source.place];
    if (!now.defined()) continue;
    const bool was_leaf = source.requires_grad && source.is_leaf;
    const bool is_leaf = now.requires_grad() && now.is_leaf();
    const bool has_new_graph = now.requires_grad() && !now.is_leaf() && !source.requires_grad;
    if (is_leaf != was_leaf || has_new_graph) return str("whether '{}' requires a gradient", source.key);
  }
  return {};
}

void Plan::find_host_data(size_t place) {
  for (const External& external : trace_.externals) {
    if (external.owner != Owner::kHost) continue;
    const auto found = std::ranges::find(trace_.constants, external.key, &Constant::key);
    const Value& value = trace_.values[external.value.index()];
    // Large data, windows on data, and what the host's calls make, have no bytes.
    const at::Tensor bytes = at::zeros({static_cast<int64_t>(trace_.storages[value.storage.index()].bytes)}, at::kByte);
    if (found != trace_.constants.end())
      std::memcpy(bytes.mutable_data_ptr(), found->bytes.data(), found->bytes.size());
    at::Tensor tensor = at::empty({0}, scalar_type_of(value.dtype));
    tensor.set_(bytes.storage(), value.offset, value.sizes, value.strides);
    host_data_.emplace(external.key, std::pair(place++, std::move(tensor)));
  }
}

std::vector<at::Tensor> Plan::with_host_data(std::vector<at::Tensor> tensors,
                                             const std::map<std::string, at::Tensor>& now) const {
  for (const auto& [key, one] : host_data_) {
    tensors.resize(std::max(tensors.size(), one.first + 1));
    const auto found = now.find(key);
    tensors[one.first] = found == now.end() ? one.second : found->second;
  }
  return tensors;
}

void Plan::fill_host_data(const std::string& key, const at::Tensor& data) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  host_data_.at(key).second.copy_(data);
}

// What must be copied before a run: all that is written before the last point where the replay may turn back, which is
// a guard or the host code of an event.
void Plan::find_undo(const std::vector<at::Tensor>& tensors) {
  const Trace& t = trace();
  size_t last = 0;
  for (const HostRead& read : t.reads)
    if (read.guard) last = std::max(last, read.call.index());
  // Recorded calls run as they were recorded; a Graph updates nothing before the last read, but what a pause finds.
  for (const HostEvent& event : t.events) {
    const bool is_early =
        event.kind == HostEvent::Kind::kRead ? fast_ == nullptr : options_.is_traced && is_stop(event);
    if (is_early) last = std::max(last, event.begin.index());
  }
  for (size_t c = 0; c < t.calls.size(); ++c) {
    if (options_.is_traced || !raising_.include(CallId(c))) continue;
    last = std::max(last, c);
    may_turn_back_ = true;
  }
  for (const HostEvent& event : t.events) {
    EventRun& run = events_.emplace_back();
    if (options_.is_traced) continue;  // who runs it turns back
    run.in_place = event.kind != HostEvent::Kind::kShadow || is_behind_guard(t, event);
    if (run.in_place && event.kind != HostEvent::Kind::kPause) last = std::max(last, event.begin.index());
    if (event.kind != HostEvent::Kind::kPause) may_turn_back_ = true;
  }
  if (std::ranges::any_of(t.reads, &HostRead::guard)) may_turn_back_ = true;

  std::vector<bool> written(t.storages.size(), false);
  std::vector<bool> written_early(t.storages.size(), false);
  for (size_t c = 0; c < t.calls.size(); ++c)
    for (ValueId value : t.calls[c].writes) {
      written[t.values[value.index()].storage.index()] = true;
      if (c < last) written_early[t.values[value.index()].storage.index()] = true;
    }
  std::vector<bool> written_by_host(t.storages.size(), false);
  for (const HostEvent& event : t.events)
    for (CallId call : event.own_calls)
      for (ValueId value : t.calls[call.index()].writes)
        written_by_host[t.values[value.index()].storage.index()] = true;
  for (size_t e = 0; e < t.externals.size(); ++e) {
    if (externals_[e] == kNoPlace) continue;
    const size_t storage = t.values[t.externals[e].value.index()].storage.index();
    if (written_by_host[storage] && options_.is_traced)
      host_.push_back(externals_[e]);
    else if (written_early[storage] || written_by_host[storage])
      undo_.push_back(externals_[e]);
    // What the program keeps from step to step may change without any declared write.
    if (options_.is_traced && written_by_host[storage]) continue;  // the host's own, which runs once
    if (written[storage] || t.externals[e].owner != Owner::kBatch) may_change_.push_back(externals_[e]);
  }
  if (fast_ != nullptr && !options_.is_traced) find_undo_of(*fast_);
  add_neighbours(tensors, host_);
  add_neighbours(tensors, undo_);
  add_neighbours(tensors, may_change_);
}

// And what a Graph, whose order is its own, has written by then.
void Plan::find_undo_of(const Road& road) {
  const Schedule& s = road.executor->schedule();
  for (size_t i = 0; i < road.raises_before; ++i)
    for (OperandId write : s.instructions[i].writes) {
      const Buffer& buffer = s.buffers[s.operands[write.index()].buffer.index()];
      if (buffer.kind != Buffer::Kind::kInput) continue;
      const size_t place = road.inputs[buffer.input];
      if (place != kNoPlace && std::ranges::find(undo_, place) == undo_.end()) undo_.push_back(place);
    }
}

void Plan::prepare_events(const Program& program) {
  for (size_t e = 0; e < trace().events.size(); ++e)
    if (trace().events[e].kind == HostEvent::Kind::kShadow)
      events_[e].update = std::make_unique<EventUpdate>(trace(), e, program.keys());
}

std::vector<at::Tensor> Plan::gather(const std::vector<size_t>& places, const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> out;
  out.reserve(places.size());
  for (size_t place : places) out.push_back(place < tensors.size() ? tensors[place] : at::Tensor());
  return out;
}

std::vector<at::Tensor> Plan::changed(const std::vector<at::Tensor>& tensors) const {
  return gather(may_change_, tensors);
}

std::vector<at::Generator> Plan::generators(const Program& program) const {
  std::vector<at::Generator> out;
  const auto owned = program.all_generators();
  for (const std::string& key : trace().generators) {
    const auto found = std::find_if(owned.begin(), owned.end(), [&](const auto& one) { return one.first == key; });
    out.push_back(found == owned.end() ? at::Generator() : found->second);
  }
  return out;
}

// Takes over the numbers of the event's host code, which runs if they are not known without that.
std::string Plan::update(size_t event, Program& program, const std::vector<at::Tensor>& tensors, Undo* undo) {
  const auto begin = Clock::now();
  EventUpdate& update = *events_[event].update;
  const auto hand_on = [&](const HostSupply& number, bool is_new) {
    if (is_new)
      supply(number);
    else if (exact_ == nullptr)
      supplied_.push_back(number);
  };
  const auto before_host_code = [&] {
    if (undo != nullptr) undo->add_host_state(program);
  };
  const bool is_own = instead_ == nullptr && !show_written_;
  const int64_t known_before = update.known_updates();
  std::string difference = update.run(program, tensors, is_own, before_host_code, hand_on);
  known_updates_ += update.known_updates() - known_before;
  shadow_seconds_ += seconds_since(begin);
  return difference;
}

void Plan::doubt_updates() {
  for (EventRun& run : events_)
    if (run.update != nullptr) run.update->doubt();
}

void Plan::supply(const HostSupply& number) {
  for (const auto* road : {&fast_, &exact_, &plain_})
    if (*road != nullptr) (*road)->executor->supply(number.call, number.arg, number.number);
  if (exact_ == nullptr || is_traced()) supplied_.push_back(number);
}

std::string Plan::why_not(const std::vector<at::Tensor>& tensors) {
  supplied_.clear();
  if (is_traced() && is_unfit()) return "the host passes another integer than the one that the plan was made for";
  if (std::string changed = changed_source(tensors); !changed.empty()) return changed;
  return current().executor->why_not(gather(current().inputs, tensors));
}

std::vector<at::Tensor> Plan::inputs_among(std::vector<at::Tensor> tensors) const {
  const std::vector<size_t>& needed = (fast_ != nullptr ? fast_ : exact_)->inputs;
  for (size_t place : gradients_)
    if (std::ranges::find(needed, place) == needed.end()) tensors[place].reset();
  return tensors;
}

StepResult Plan::begin(const Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times) {
  RunInputs inputs;
  inputs.times = times;
  inputs.tells_autograd = false;
  inputs.tensors = gather(current().inputs, tensors);
  inputs.on_event = [](size_t, const std::vector<at::Tensor>&) { return std::string(); };
  if (trace().generators.size() > 1) inputs.generators = generators(program);
  ran_exact_ = false;
  return current().executor->run(std::move(inputs));
}

std::string Plan::run_event(size_t event, Program& program, const std::vector<at::Tensor>& tensors,
                            const std::vector<at::Tensor>& gradients, Undo* undo) {
  if (is_traced()) return {};  // its numbers are there
  if (events_[event].update != nullptr)
    return events_[event].in_place ? update(event, program, tensors, undo) : std::string();
  const std::vector<Rebinding>& finds = trace().events[event].gradients;
  for (size_t g = 0; g < gradients.size(); ++g) {
    const auto found = std::find(parameter_keys_.begin(), parameter_keys_.end(), finds[g].key);
    if (found != parameter_keys_.end() && gradients[g].defined())
      set_gradient(tensors[parameters_[static_cast<size_t>(found - parameter_keys_.begin())]], gradients[g]);
  }
  program.run_event(trace().events[event].key);
  return {};
}

// As a Graph where that fits; a guard that misses there is found again, and named, by the recorded calls. `of_current`:
// the tensors that current() takes, gathered already.
StepResult Plan::execute(const RunInputs& inputs, std::vector<at::Tensor> of_current,
                         const std::vector<at::Tensor>& tensors) {
  const Road* gathered = &current();
  const auto run_on = [&](Road& road) {
    RunInputs given = inputs;
    given.tensors = &road == gathered ? std::move(of_current) : gather(road.inputs, tensors);
    gathered = nullptr;
    if (show_written_)
      given.show_written = [&](size_t input, const at::Tensor& left, int64_t first) {
        show_written_(road.inputs[input], left, first);
      };
    return road.executor->run(std::move(given));
  };
  if (instead_ != nullptr) return run_on(*instead_);
  ran_exact_ = false;
  if (&current() == fast_.get()) {
    StepResult result = run_on(*fast_);
    if (!result.missed_guard || is_virtual()) return result;
  }
  ran_exact_ = fast_ != nullptr;
  return run_on(exact());
}

Plan::Outcome Plan::run_plain(Program& program, const std::vector<at::Tensor>& tensors) {
  plain_ = road_of(compile_plain(trace_, *options_.kernels, compile_options()));
  for (const HostSupply& one : supplied_) plain_->executor->supply(one.call, one.arg, one.number);
  Outcome outcome = run_instead(*plain_, program, tensors);
  if (!plain_->executor->is_paused()) plain_.reset();
  return outcome;
}
Plan::Outcome Plan::run_recorded(Program& program, const std::vector<at::Tensor>& tensors) {
  return run_instead(exact(), program, tensors);
}

Plan::Outcome Plan::run_instead(Road& road, Program& program, const std::vector<at::Tensor>& tensors) {
  const int64_t before = replays;
  instead_ = &road;
  Outcome outcome;
  try {
    outcome = run(program, tensors);
  } catch (...) {
    instead_ = nullptr;
    plain_.reset();
    throw;
  }
  instead_ = nullptr;
  replays = before;
  return outcome;
}

StepResult Plan::resume_plain(const std::vector<at::Tensor>& incoming) {
  INTERNAL_CHECK(plain_ != nullptr, "a run of the plain graph goes on that was not paused");
  const std::unique_ptr<Road> plain = std::move(plain_);
  std::map<size_t, Arg> reads;
  return past_reads(
      plain->executor->resume(incoming), [&] { return plain->executor->resume({}); }, reads);
}

bool Plan::is_paused() const {
  const auto is_paused = [](const auto& road) { return road != nullptr && road->executor->is_paused(); };
  return is_paused(fast_) || is_paused(exact_);
}
StepResult Plan::resume(const std::vector<at::Tensor>& incoming) {
  const bool is_fast = fast_ != nullptr && fast_->executor->is_paused();
  return (is_fast ? *fast_ : exact()).executor->resume(incoming);
}
StepResult Plan::resume(const std::vector<at::Tensor>& incoming, std::map<size_t, Arg>& reads) {
  return past_reads(
      resume(incoming), [&] { return resume({}); }, reads);
}

StepResult Plan::past_reads(StepResult result, const std::function<StepResult()>& resume,
                            std::map<size_t, Arg>& reads) const {
  while (result.paused && trace().events[result.event].kind == HostEvent::Kind::kRead) {
    if (trace().events[result.event].own_calls.empty()) reads[result.event] = number_at(result);
    result = resume();
  }
  return result;
}
void Plan::abandon() {
  for (const auto* road : {&fast_, &exact_})
    if (*road != nullptr) (*road)->executor->abandon();
  plain_.reset();
}

uint64_t Plan::make_plain(uint64_t most_bytes) {
  const PlainLimit limit{most_bytes, fused_};
  plain_ = road_of(compile_plain(trace_, *options_.kernels, compile_options(), &limit));
  instead_ = plain_.get();
  return plain_->executor->schedule().peak_bytes();
}

Plan::DryOutcome Plan::run_dry(Program& program, const std::vector<at::Tensor>& tensors) {
  Undo undo(&program, gather(undo_, tensors), generators(program));
  const SavedGradients gradients(program.keys(), tensors);
  std::vector<Sketch> left(tensors.size());
  const int64_t before = replays;
  const auto put_back = [&] {
    show_written_ = {};
    gradients.restore();
    undo.restore();
    replays = before;
  };
  show_written_ = [&](size_t place, const at::Tensor& tensor, int64_t first) {
    left[place].show(tensor, first, tensors[place].numel());
  };
  DryOutcome dry;
  try {
    static_cast<Outcome&>(dry) = run(program, tensors);
    for (size_t place : undo_)  // host code has written there
      if (place < tensors.size() && !left[place].is_defined()) left[place] = Sketch(tensors[place]);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  for (const Sketch& sketch : left) dry.left.push_back(sketch.values());
  if (!dry.result) return dry;
  for (at::Tensor& output : dry.result->outputs) output = Sketch(output).values();
  for (Bound& bound : dry.result->rebindings) bound.tensor = Sketch(bound.tensor).values();
  return dry;
}

Arg number_at(const StepResult& pause) {
  if (pause.given.empty()) return pause.read;
  const at::Tensor& value = pause.given.front();
  if (value.scalar_type() == at::kBool) return value.item<bool>();
  if (at::isIntegralType(value.scalar_type(), /*includeBool=*/false)) return value.item<int64_t>();
  return value.item<double>();
}

Plan::Outcome Plan::run(Program& program, const std::vector<at::Tensor>& tensors, RunTimes* times) {
  Outcome outcome;
  RunInputs inputs;
  if (!is_traced()) supplied_.clear();
  inputs.times = times;
  outcome.change = changed_source(tensors);
  std::vector<at::Tensor> of_current;
  if (outcome.change.empty()) {
    of_current = gather(current().inputs, tensors);
    outcome.change = current().executor->why_not(of_current);
  }
  if (!outcome.change.empty()) return outcome;
  if (trace().generators.size() > 1) inputs.generators = generators(program);

  std::optional<Undo> undo;
  std::optional<SavedGradients> gradients;
  if (may_turn_back_) {
    const auto begin = Clock::now();
    undo.emplace(nullptr, gather(undo_, tensors), inputs.generators);
    // What runs later runs where the plan's memory is served.
    if (!is_traced() && std::ranges::any_of(events_, &EventRun::in_place)) undo->add_host_state(program);
    gradients.emplace(program.keys(), tensors);
    if (!events_.empty()) shadow_seconds_ += seconds_since(begin);
  }
  Undo* const taken = undo ? &*undo : nullptr;
  const auto turn_back = [&] {
    gradients->restore();
    undo->restore();
  };
  for (size_t e = 0; e < events_.size() && outcome.change.empty() && !is_traced(); ++e)
    if (!events_[e].in_place) outcome.change = update(e, program, tensors, taken);
  if (outcome.change.empty() && is_virtual() && is_unfit())
    outcome.change = "the program's host code passes another integer than the one that the plan was made for";
  if (!outcome.change.empty()) {
    turn_back();
    return outcome;
  }
  // Gradients that the step throws away unread are memory that it may use.
  if (!is_traced())
    for (size_t p : dropped_) set_gradient(tensors[parameters_[p]], {});
  bool is_host_code = false;
  inputs.on_event = [&](size_t event, const std::vector<at::Tensor>& found) {
    is_host_code = true;
    std::string why = run_event(event, program, tensors, found, taken);
    is_host_code = false;
    return why;
  };
  // Of an error of a call: all that it was after is put back, and the step runs as it is.
  const auto is_undone = [&] {
    if (may_turn_back_) turn_back();
    const Road& road = ran_exact_ || fast_ == nullptr ? exact() : *fast_;
    return may_turn_back_ && !is_host_code && instead_ == nullptr && !is_traced() &&
           road.executor->failed_at() < road.raises_before;
  };
  StepResult result;
  try {
    const auto begin = Clock::now();
    result = execute(inputs, std::move(of_current), tensors);
    const auto resume = [&] { return (instead_ != nullptr ? *instead_ : current()).executor->resume({}); };
    result = past_reads(std::move(result), resume, outcome.reads);
    execute_seconds_ += seconds_since(begin);
  } catch (const c10::Error& error) {
    if (!is_undone()) throw;
    outcome.error = error.what_without_backtrace();
    return outcome;
  } catch (const UserError& error) {  // of a result of another size
    if (!is_undone()) throw;
    outcome.error = error.what();
    return outcome;
  } catch (...) {
    if (may_turn_back_) turn_back();
    throw;
  }
  if (result.missed_guard || !result.stopped.empty()) {
    if (may_turn_back_) turn_back();
    if (is_virtual() && result.missed_guard) {
      outcome.change = "a value of the batch is not what the plan was made for";
      return outcome;
    }
    outcome.missed_read = result.missed_number;
    outcome.read = result.read;
    outcome.change = std::move(result.stopped);
    return outcome;
  }
  ++replays;
  outcome.result = std::move(result);
  return outcome;
}

void Plan::apply(Program& program, const std::vector<at::Tensor>& tensors, const StepResult& result) const {
  // Gradients that were there for an eager event only.
  for (const HostEvent& event : trace().events) {
    if (event.kind != HostEvent::Kind::kEager) continue;
    for (const Rebinding& gradient : event.gradients) {
      const auto found = std::find(parameter_keys_.begin(), parameter_keys_.end(), gradient.key);
      if (found == parameter_keys_.end()) continue;
      const auto p = static_cast<size_t>(found - parameter_keys_.begin());
      set_gradient(tensors[parameters_[p]], tensors[gradients_[p]]);
    }
  }
  for (const Bound& bound : result.rebindings) {
    if (bound.owner != Owner::kGradient) {
      program.rebind(bound.owner, bound.key, bound.tensor);
      continue;
    }
    const auto found = std::find(parameter_keys_.begin(), parameter_keys_.end(), bound.key);
    INTERNAL_CHECK(found != parameter_keys_.end(), "no parameter '{}'", bound.key);
    set_gradient(tensors[parameters_[static_cast<size_t>(found - parameter_keys_.begin())]], bound.tensor);
  }
}

bool Plan::reads_after_pause(size_t output) const {
  const bool is_fast = fast_ != nullptr && fast_->executor->is_paused();
  const Schedule& s = (is_fast ? fast_ : exact_)->executor->schedule();
  const auto is_pause = [](const Instruction& one) { return one.kind == Instruction::Kind::kPause; };
  const auto pause = std::ranges::find_if(s.instructions, is_pause);
  const OperandId given = pause->reads.at(output);
  if (!given.valid()) return false;
  const auto reads = [&](OperandId read) {
    return read.valid() && s.operands[read.index()].buffer == s.operands[given.index()].buffer;
  };
  return std::any_of(pause + 1, s.instructions.end(),
                     [&](const Instruction& later) { return std::ranges::any_of(later.reads, reads); });
}

const HostEvent& Plan::pause() const {
  const std::optional<size_t> found = find_pause(trace());
  INTERNAL_CHECK(found, "the plan has no pause");
  return trace().events[*found];
}

int64_t Plan::pause_structure() const { return std::stoll(pause().key); }

std::string Plan::why_not_resume(const std::vector<at::Tensor>& incoming) const {
  const std::string& key = pause().key;
  if (key.substr(key.find(' ') + 1) != which_are_defined(incoming)) return "the loss uses other outputs than before";
  const auto is_dense = [](const at::Tensor& one) {
    return !one.defined() || (one.layout() == c10::Layout::Strided && is_planned(one.device()));
  };
  return std::ranges::all_of(incoming, is_dense) ? "" : "the gradient of an output is not a dense tensor";
}

std::vector<at::Tensor> Plan::written_before_pause(const std::vector<at::Tensor>& tensors) const {
  return written_by(pause().begin.index(), tensors);
}
std::vector<at::Tensor> Plan::written(const std::vector<at::Tensor>& tensors) const {
  return written_by(trace().calls.size(), tensors);
}

std::vector<at::Tensor> Plan::written_by(size_t end, const std::vector<at::Tensor>& tensors) const {
  const Trace& t = trace();
  std::set<size_t> written;
  for (size_t c = 0; c < end; ++c)
    for (ValueId value : t.calls[c].writes) written.insert(t.values[value.index()].storage.index());
  std::vector<at::Tensor> out;
  for (size_t e = 0; e < t.externals.size(); ++e)
    if (externals_[e] != kNoPlace && written.contains(t.values[t.externals[e].value.index()].storage.index()))
      out.push_back(tensors[externals_[e]]);
  return out;
}

bool Plan::has_same_calls(const Trace& recorded) const {
  const Agreement agreement = agree_on_calls(trace_, recorded);
  if (!agreement.difference.empty() || !agreement.obstacle.empty()) return false;
  return agreement.trace.events == trace_.events && agreement.trace.externals == trace_.externals;  // and host data
}

bool Plan::continues(const Plan& other, size_t index, const Arg& number) const {
  const std::vector<HostRead>& reads = trace().reads;
  if (reads.size() <= index) return false;
  for (size_t r = 0; r <= index; ++r) {
    if (!reads[r].guard) continue;
    const Arg& expected = number_read(trace(), reads[r]);
    if (r == index ? !same_number(expected, number)
                   : other.trace().reads[r].guard &&
                         !same_number(expected, number_read(other.trace(), other.trace().reads[r])))
      return false;
  }
  return reads[index].call == other.trace().reads[index].call;
}

}  // namespace stepc
