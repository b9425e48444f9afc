#include "engine/plan/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "aten/memory_regions.h"
#include "base/check.h"
#include "ir/agree.h"
#include "plan/unordered_sums.h"

namespace stepc {

namespace {
const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Adds the program's other tensors in the same memory: a trace names a storage by its first tensor only.
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

Plan::Plan(Trace recorded, Trace agreed, const Program& program, const std::vector<at::Tensor>& tensors,
           const PlanOptions& options)
    : recorded_(std::move(recorded)),
      trace_(std::move(agreed)),
      raising_(trace_),
      options_(options),
      inputs_(trace_, program, tensors) {
  if (options.kernels != nullptr) compile_graph();
  if (fast_ == nullptr) exact();
  unordered_ = adds_in_any_order(trace_, at::globalContext().deterministicAlgorithms());
  find_undo(tensors);
  if (options.is_traced)
    tracer_ = std::make_unique<Tracer>(trace_);
  else
    prepare_events(program);
}

DType Plan::narrowest() const {
  if (graph() != nullptr) return graph()->narrowest;
  DType narrowest = DType::kF32;
  for (const Value& value : trace_.values)
    if (is_floating(value.dtype) && size_of(value.dtype) < size_of(narrowest)) narrowest = value.dtype;
  return narrowest;
}

CompileOptions Plan::compile_options() const {
  CompileOptions options{options_.known.target, options_.budget};
  options.target.threads = options_.threads;
  options.fp8 = options_.fp8;
  options.device_graphs = options_.device_graphs;
  return options;
}

void Plan::compile_graph() {
  if (trace_.device.starts_with("cuda") && !options_.device_kernels) {
    why_exact_ = "stepc's own kernels have not run in steps on a GPU yet (device_kernels = true tries them)";
    return;
  }
  try {
    Compiled compiled = compile_fast(trace_, *options_.kernels, compile_options());
    weighed_ = compiled.weighed;
    if (is_virtual()) fused_ = std::move(compiled.graph);
    fast_ = variant_of(std::move(compiled));
  } catch (const UserError& error) {
    why_exact_ = error.what();
  } catch (const std::exception& error) {
    why_exact_ = str("a fault of stepc: {}", error.what());
    has_fault_ = true;
  }
}

Plan::Variant& Plan::exact() {
  if (exact_ == nullptr) {
    USER_CHECK(options_.capture == Capture::kRun, "a step that was never run has no recorded calls to replay: {}",
               why_exact_);
    exact_ = variant_of(compile_exact(trace_, options_.threads, options_.device_graphs));
    for (EventRun& run : events_)
      if (run.update != nullptr) run.update->set_stale();
    for (const HostSupply& one : supplied_) exact_->executor->supply(one.call, one.arg, one.number);
  }
  return *exact_;
}

std::unique_ptr<Plan::Variant> Plan::variant_of(Compiled compiled) {
  planning_seconds_ += compiled.seconds;
  auto variant = std::make_unique<Variant>();
  variant->executor = std::move(compiled.executor);
  variant->plan = std::move(compiled.plan);
  variant->inputs = inputs_.places_of(variant->executor->schedule());
  const std::vector<Instruction>& instructions = variant->executor->schedule().instructions;
  for (size_t i = 0; i < instructions.size(); ++i)
    if (raising_.include(instructions[i])) variant->raises_before = i + 1;
  return variant;
}

// Finds the tensors to copy before a run: all tensors written before the last point where the replay may turn back,
// which is a guard or the host code of an event.
void Plan::find_undo(const std::vector<at::Tensor>& tensors) {
  const Trace& t = trace();
  size_t last = 0;
  for (const HostRead& read : t.reads)
    if (read.guard) last = std::max(last, read.call.index());
  // Recorded calls run in the recorded order. A Graph updates nothing before its last read, except tensors that host
  // code finds at a pause.
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
    if (inputs_.externals()[e] == kNoPlace) continue;
    const size_t storage = t.values[t.externals[e].value.index()].storage.index();
    if (written_by_host[storage] && options_.is_traced)
      host_.push_back(inputs_.externals()[e]);
    else if (written_early[storage] || written_by_host[storage])
      undo_.push_back(inputs_.externals()[e]);
    // Tensors that the program keeps between steps may change without a declared write.
    if (options_.is_traced && written_by_host[storage]) continue;  // the host's own, which runs once
    if (written[storage] || t.externals[e].owner != Owner::kBatch) may_change_.push_back(inputs_.externals()[e]);
  }
  if (fast_ != nullptr && !options_.is_traced) find_undo_of(*fast_);
  add_neighbours(tensors, host_);
  add_neighbours(tensors, undo_);
  add_neighbours(tensors, may_change_);
}

// Adds the tensors that a Graph, which has an order of its own, has written by then.
void Plan::find_undo_of(const Variant& variant) {
  const Schedule& s = variant.executor->schedule();
  for (size_t i = 0; i < variant.raises_before; ++i)
    for (OperandId write : s.instructions[i].writes) {
      const Buffer& buffer = s.buffers[s.operands[write.index()].buffer.index()];
      if (buffer.kind != Buffer::Kind::kInput) continue;
      const size_t place = variant.inputs[buffer.input];
      if (place != kNoPlace && std::ranges::find(undo_, place) == undo_.end()) undo_.push_back(place);
    }
}

void Plan::prepare_events(const Program& program) {
  for (size_t e = 0; e < trace().events.size(); ++e)
    if (trace().events[e].kind == HostEvent::Kind::kShadow)
      events_[e].update = std::make_unique<EventUpdate>(trace(), e, program.keys());
}

std::vector<at::Tensor> Plan::changed(const std::vector<at::Tensor>& tensors) const {
  return tensors_at(may_change_, tensors);
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

void Plan::doubt_updates() {
  for (EventRun& run : events_)
    if (run.update != nullptr) run.update->doubt();
}

void Plan::supply(const HostSupply& number) {
  for (const auto* variant : {&fast_, &exact_, &plain_})
    if (*variant != nullptr) (*variant)->executor->supply(number.call, number.arg, number.number);
  if (exact_ == nullptr || is_traced()) supplied_.push_back(number);
}

std::string Plan::why_not(const std::vector<at::Tensor>& tensors) {
  supplied_.clear();
  if (is_traced() && is_unfit()) return "the host passes another integer than the one that the plan was made for";
  if (std::string changed = inputs_.changed_source(tensors); !changed.empty()) return changed;
  return current().executor->why_not(tensors_at(current().inputs, tensors));
}

std::vector<at::Tensor> Plan::inputs_among(std::vector<at::Tensor> tensors) const {
  const std::vector<size_t>& needed = (fast_ != nullptr ? fast_ : exact_)->inputs;
  for (const InputMap::Parameter& one : inputs_.parameters())
    if (std::ranges::find(needed, one.gradient) == needed.end()) tensors[one.gradient].reset();
  return tensors;
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
    if (inputs_.externals()[e] != kNoPlace && written.contains(t.values[t.externals[e].value.index()].storage.index()))
      out.push_back(tensors[inputs_.externals()[e]]);
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
