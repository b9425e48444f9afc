// The end of a recording: what the step left behind, and what its host code did.
#include <algorithm>

#include "aten/memory_regions.h"
#include "base/check.h"
#include "capture/event_calls.h"
#include "capture/recording_state.h"

namespace stepc {

namespace {
// Of the windows on a storage, one on all of it.
ValueId on_all_of(const Trace& trace, const std::vector<ValueId>& values) {
  for (ValueId id : values) {
    const Value& value = trace.values[id.index()];
    const auto bytes = static_cast<uint64_t>(extent_of(value)) * static_cast<uint64_t>(size_of(value.dtype));
    const bool is_plain = value.offset == 0 && is_contiguous(value) && !value.conj && !value.neg;
    if (is_plain && bytes == trace.storages[value.storage.index()].bytes) return id;
  }
  return {};
}

std::string describe(const Trace& trace, const std::vector<ValueId>& values) {
  const Value& value = trace.values[values.front().index()];
  return str("{}[{}]", name_of(value.dtype), fmt::join(value.sizes, ", "));
}

}  // namespace

std::string which_are_defined(const std::vector<at::Tensor>& incoming) {
  std::string out;
  for (const at::Tensor& tensor : incoming) out += tensor.defined() ? '1' : '0';
  return out;
}

// ---- host events

std::vector<Rebinding> RecordingState::gradients_now() {
  std::vector<Rebinding> out;
  for (const OwnedTensor& one : program_.list()) {
    if (one.owner != Owner::kGradient || !one.tensor.defined()) continue;
    out.push_back(gradient(one.key, one.tensor));
  }
  return out;
}

Rebinding RecordingState::gradient(const std::string& key, const at::Tensor& tensor) {
  Rebinding gradient{Owner::kGradient, key, {}};
  if (is_planned(tensor))
    if (const std::optional<StorageId> found = find_storage(tensor)) gradient.value = value_on(*found, tensor);
  return gradient;
}

void RecordingState::begin_event(const std::string& key, std::vector<Rebinding> gradients) {
  const auto begin = std::chrono::steady_clock::now();
  if (event_open_) obstacle(str("'{}' is called inside another optimizer's step", key));
  HostEvent event;
  event.key = key;
  event.begin = event.end = CallId(trace_.calls.size());
  event.gradients = std::move(gradients);
  trace_.events.push_back(std::move(event));
  event_open_ = true;
  overhead_ += std::chrono::steady_clock::now() - begin;
}

void RecordingState::read_decides(size_t read) {
  if (read < trace_.reads.size()) trace_.reads[read].decides = true;
}

void RecordingState::end_event() {
  if (!event_open_) return;
  trace_.events.back().end = CallId(trace_.calls.size());
  event_open_ = false;
}

// ---- what is left

void RecordingState::check_owned_storages(const OwnedNow& now) {
  size_t gone = 0;
  size_t incoming = 0;
  for (const OwnedBefore& before : owned_) {
    if (before.owner == Owner::kIncoming) {
      ++incoming;
      continue;
    }
    const auto found = now.find({before.owner, before.key});
    if (found == now.end()) {
      gone += before.owner != Owner::kGradient ? 1 : 0;
      continue;
    }
    if (program_.can_rebind(before.owner)) continue;
    const bool same = found->second.defined() ? found->second.storage().unsafeGetStorageImpl() == before.storage ||
                                                    before.storage == nullptr
                                              : before.storage == nullptr;
    if (!same) obstacle(str("{} '{}' is given other memory inside the step", name_of(before.owner), before.key));
  }
  // State that an optimizer makes in its first step: the next recording finds it in place.
  if (gone != 0 || now.size() + incoming != owned_.size())
    obstacle("parameters, buffers or optimizer state come or go inside the step");
}

void RecordingState::find_rebindings(const OwnedNow& now) {
  for (const OwnedBefore& before : owned_) {
    if (!program_.can_rebind(before.owner)) continue;
    const auto found = now.find({before.owner, before.key});
    if (found == now.end() || !found->second.defined()) {
      if (before.storage != nullptr) trace_.rebindings.push_back({before.owner, before.key, {}});
      continue;
    }
    const at::Tensor& tensor = found->second;
    c10::StorageImpl* storage = is_planned(tensor) ? tensor.storage().unsafeGetStorageImpl() : nullptr;
    if (storage == before.storage) continue;  // written in place, or untouched
    const std::optional<StorageId> made = storage != nullptr ? find_storage(tensor) : std::nullopt;
    if (!made) {
      obstacle(
          str("{} '{}' is replaced by a tensor that no operator of the step made", name_of(before.owner), before.key));
      continue;
    }
    trace_.rebindings.push_back({before.owner, before.key, value_on(*made, tensor)});
    if (tracked_[made->index()].owned < 0) trace_.storages[made->index()].escapes = true;
  }
}

ValueId RecordingState::output_value(const at::Tensor& output) {
  if (!output.defined()) return {};
  if (is_planned(output)) {
    if (const std::optional<StorageId> found = find_storage(output)) {
      Storage& storage = trace_.storages[found->index()];
      storage.escapes = storage.escapes || !storage.external;
      return value_on(*found, output);
    }
  }
  obstacle(str("the step returns a {}[{}] tensor that none of its operators made", c10::toString(output.scalar_type()),
               fmt::join(output.sizes(), ", ")));
  return {};
}

void RecordingState::pause(const std::vector<at::Tensor>& outputs, int64_t structure) {
  if (random_.are_put_back())  // what stands before the next call of a trace is put back after the pause
    obstacle("a random generator is given an earlier state at the end of the forward pass");
  HostEvent event;
  event.kind = HostEvent::Kind::kPause;
  event.key = str("{}", structure);
  event.begin = event.end = CallId(trace_.calls.size());
  for (const at::Tensor& output : outputs) event.outputs.push_back(output_value(output));
  trace_.events.push_back(std::move(event));
  made_.clear();
  notes_made_ = false;
}

void RecordingState::resume(const std::vector<at::Tensor>& incoming) {
  random_.resume();
  trace_.events.back().key += ' ' + which_are_defined(incoming);
  for (size_t i = 0; i < incoming.size(); ++i) {
    if (incoming[i].defined() && is_planned(incoming[i]) &&
        (ids_.contains(incoming[i].storage().unsafeGetStorageImpl()) ||
         batch_regions_.contains(incoming[i].storage().unsafeGetStorageImpl())))
      obstacle("a gradient that comes back shares memory with what the step gave out");
    own({Owner::kIncoming, str("{}", i), incoming[i]});
  }
}

// Constants that outlive the step are somebody's state.
void RecordingState::find_unowned(const std::vector<at::Tensor>& outputs) {
  for (size_t s = 0; s < tracked_.size(); ++s) {
    const TrackedStorage& tracked = tracked_[s];
    if (tracked.why_unowned.empty() || trace_.storages[s].bytes == 0) continue;
    const auto returned = std::count_if(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
      if (!output.defined() || !output.has_storage()) return false;
      const auto found = ids_.find(output.storage().unsafeGetStorageImpl());
      return found != ids_.end() && found->second.index() == s;
    });
    if (static_cast<int64_t>(tracked.weak.use_count()) <= returned) continue;
    if (const auto storage = tracked.weak.lock())
      unowned_.emplace_back(whole(c10::Storage(storage)), tracked.why_unowned);
  }
  for (const at::Generator& generator : random_.unowned())
    unowned_.emplace_back(generator,
                          "the step draws from a random generator that outlives it and that the program does not know");
}

void RecordingState::find_escapes() {
  for (size_t s = 0; s < tracked_.size(); ++s) {
    TrackedStorage& tracked = tracked_[s];
    if (trace_.storages[s].external || trace_.storages[s].escapes || trace_.storages[s].bytes == 0) continue;
    if (tracked.values.empty()) continue;
    const auto storage = tracked.weak.lock();
    if (!storage) continue;
    unowned_.emplace_back(whole(c10::Storage(storage)),
                          str("a {} tensor that the step made is kept after it and is neither returned nor a gradient",
                              describe(trace_, tracked.values)));
    unowned_.back().made = on_all_of(trace_, tracked.values);
  }
}

void RecordingState::list_allocations() {
  trace_.ticks = log_.ticks() + 1;
  if (kernels_ != nullptr) return;  // what was allocated is not what the step allocates
  const auto& events = log_.events();
  std::vector<StorageId> storage_of(events.size());
  for (size_t s = 0; s < tracked_.size(); ++s)
    if (tracked_[s].allocation >= 0) storage_of[static_cast<size_t>(tracked_[s].allocation)] = StorageId(s);
  for (size_t e = 0; e < events.size(); ++e) {
    const AllocationLog::Event& event = events[e];
    if (!event.call.valid() || event.bytes == 0) continue;
    if (storage_of[e].valid() && tracked_[storage_of[e].index()].filled_by_host) continue;
    Allocation allocation{event.call, event.bytes, event.first, event.last, storage_of[e], false, event.space};
    if (allocation.storage.valid()) {
      // The memory is free again once the last call that names it has ended, however long the program held it.
      allocation.last = std::max(tracked_[allocation.storage.index()].last_use, event.first + 1);
      allocation.kept = trace_.storages[allocation.storage.index()].escapes;
    } else {
      allocation.kept = event.last < 0;
    }
    if (allocation.kept) allocation.last = trace_.ticks;
    trace_.allocations.push_back(allocation);
  }
  trace_.scratch = log_.take_scratch();
}

void RecordingState::finish(const StepOutput& output) {
  const auto begin = std::chrono::steady_clock::now();
  if (event_open_) end_event();
  stopped_ = true;  // what follows is ours
  OwnedNow now;
  for (const OwnedTensor& one : program_.list()) now[{one.owner, one.key}] = one.tensor;
  try {
    check_owned_storages(now);
    for (const at::Tensor& tensor : output.tensors) trace_.outputs.push_back(output_value(tensor));
    trace_.numbers = output.numbers;
    find_rebindings(now);
    random_.finish(CallId(trace_.calls.size()), trace_);
    const size_t marked = trace_.events.size();
    if (marked == 0) program_.find_events(trace_);
    for (HostEvent& event : trace_.events) {
      if (event.kind == HostEvent::Kind::kPause) continue;
      if (const std::string why = classify_event(trace_, event, marked != 0); !why.empty()) effect(why);
    }
  } catch (const UserError& error) {
    obstacle(error.what());
  }
  find_unowned(output.tensors);
  find_escapes();
  for (const bool all : {false, true}) {
    if (unowned_.empty()) break;
    unowned_.clear();  // perhaps only garbage holds them
    const auto settling = std::chrono::steady_clock::now();
    program_.settle(all);
    settling_ += std::chrono::steady_clock::now() - settling;
    find_unowned(output.tensors);
    find_escapes();
  }
  // Data that the step has fetched, and that only its own code can fetch again.
  for (size_t s = 0; s < tracked_.size(); ++s)
    if (!tracked_[s].why_unowned.empty() && trace_.storages[s].bytes > kMaxConstantBytes && tracked_[s].weak.expired())
      effect(tracked_[s].why_unowned);
  list_allocations();
  overhead_ += std::chrono::steady_clock::now() - begin - settling_;
}

Recording RecordingState::take(StepOutput output) {
  Recording recording;
  recording.trace = std::move(trace_);
  recording.output = std::move(output);
  recording.obstacles = std::move(obstacles_);
  recording.unowned = std::move(unowned_);
  recording.effects = std::move(effects_);
  recording.raised = raised_;
  recording.peak_bytes = log_.peak_bytes();
  recording.overhead_seconds = std::chrono::duration<double>(overhead_).count();
  recording.settle_seconds = std::chrono::duration<double>(settling_).count();
  return recording;
}

}  // namespace stepc
