#include "capture/tracing/trace_observer.h"

#include <algorithm>

#include "aten/memory_regions.h"
#include "aten/operators.h"
#include "base/check.h"
#include "capture/index_range.h"
#include "ir/agree.h"

namespace stepc {

namespace {
// A storage's memory, for another storage to lie on, too.
c10::DataPtr memory_of(const c10::Storage& storage) {
  const auto let_go = [](void* holder) { delete static_cast<c10::Storage*>(holder); };
  return {storage.mutable_data(), new c10::Storage(storage), let_go, storage.device()};
}
}  // namespace

c10::DataPtr memory_like(const c10::StorageImpl& storage) {
  return c10::GetAllocator(storage.device_type())->allocate(storage.nbytes());
}

Tracer::Observer::Observer(const Trace& trace)
    : trace_(trace),
      expected_(expected_calls(trace)),
      written_(trace.storages.size()),
      states_(trace),
      pause_(find_pause(trace)) {
  for (const Call& call : trace.calls)
    for (ValueId value : call.writes) written_[storage_of(value).index()] = true;
  for (const External& external : trace.externals)
    if (external.owner == Owner::kHost) host_of_.emplace(storage_of(external.value), &external);
}

void Tracer::Observer::bind(const std::vector<at::Tensor>& externals, std::vector<at::Generator> generators) {
  heir_.reset();
  recording_.reset();
  marks_.clear();
  states_.bind(std::move(generators));
  met_.assign(trace_.storages.size(), {});
  kept_.clear();
  supplied_.clear();
  host_data_.clear();
  stale_.clear();
  shown_.clear();
  filled_.clear();
  made_.clear();
  given_at_pause_.clear();
  is_past_pause_ = false;
  departure_ = {};
  numbers_.clear();
  next_ = 0;
  for (size_t e = 0; e < trace_.externals.size(); ++e) {
    if (!externals[e].defined() || !externals[e].has_storage()) continue;
    kept_.push_back(externals[e].storage());
    meet(trace_.externals[e].value, externals[e]);
  }
}

void Tracer::Observer::release() {
  kept_.clear();
  met_.clear();
  made_.clear();
  host_data_.clear();
  recording_.reset();
  heir_.reset();
}

void Tracer::Observer::begin(const Callbacks* callbacks, bool computes) {
  callbacks_ = callbacks;
  computes_ = computes;
  if (computes_ && callbacks_->record) recording_ = callbacks_->record()->take_over();
}

void Tracer::Observer::pause(const std::vector<at::Tensor>& outputs, int64_t structure) {
  if (heir_) return heir_->pause(outputs, structure);
  if (!is_following() || pauses(outputs, structure)) return;
  if (hand_over([&](Observer& other) { return other.pauses(outputs, structure); })) return;
  stray("its part before the pause ends otherwise than was recorded", /*records=*/false);
}

void Tracer::Observer::resume(const std::vector<at::Tensor>& incoming) {
  if (heir_) return heir_->resume(incoming);
  const std::string defined = ' ' + which_are_defined(incoming);
  const auto comes_back = [&](const Observer& one) {
    if (!one.is_at_pause()) return false;
    const HostEvent& event = one.trace_.events[*one.pause_];
    return event.key.ends_with(defined) && event.outputs == trace_.events[*pause_].outputs;
  };
  if (is_following() && !comes_back(*this)) {
    if (hand_over(comes_back)) return heir_->resume(incoming);
    stray("the loss uses other outputs than was recorded", /*records=*/false);
  }
  made_.clear();
  is_past_pause_ = true;
  for (const External& external : trace_.externals) {
    if (external.owner != Owner::kIncoming) continue;
    const at::Tensor& tensor = incoming.at(std::stoul(external.key));
    if (!tensor.defined() || !tensor.has_storage()) continue;  // its calls will differ
    kept_.push_back(tensor.storage());
    meet(external.value, tensor);
  }
  if (!computes_) states_.resume(next_);
}

std::vector<at::Tensor> Tracer::Observer::held() {
  if (heir_) return heir_->held();
  std::vector<at::Tensor> held = made_.held();
  std::erase_if(held, [&](const at::Tensor& tensor) {
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    return !tensor.requires_grad() &&
           std::ranges::find(kept_, storage, &c10::Storage::unsafeGetStorageImpl) != kept_.end();
  });
  return held;
}

void Tracer::Observer::note(const at::Tensor& tensor) {
  if (heir_) return heir_->note(tensor);
  made_.note(tensor);
}

void Tracer::Observer::end() {
  if (heir_) return heir_->end();
  // What the recorder itself looked at the results with.
  while (is_following() && next_ != expected_.size() && is_view(trace_, trace_.calls[next_])) ++next_;
  if (is_following() && !is_at_end()) {
    if (hand_over([](Observer& other) { return other.is_at_end(); })) return heir_->end();
    stray(next_ == expected_.size() ? "it leaves a random generator in another state"
                                    : str("it makes {} calls and {} were recorded", next_, expected_.size()));
  }
  if (!is_following() && !computes_) states_.replace_marks();
  callbacks_ = nullptr;
}

void Tracer::Observer::stop() {
  if (heir_) return heir_->stop();
  if (is_following()) stray("it ends with an error", /*records=*/false);
  if (!computes_) states_.replace_marks();
  callbacks_ = nullptr;
}

void Tracer::Observer::call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (heir_) return heir_->call(op, below, stack);
  if (is_following() && !follows(op, *stack)) {
    const std::string difference = difference_of(op);
    if (hand_over([&](Observer& other) { return other.follows(op, *stack, /*takes=*/false); }))
      return heir_->call(op, below, stack);
    stray(difference);
  }
  if (!is_following()) {
    if (!computes_) states_.replace_marks();
    return run(op, below, stack);
  }
  if (expected_[next_].made_by_host) return make_call(op, below, stack);
  const auto is_known = [&](const at::Tensor& tensor) {
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    return !is_unreadable(*storage) && !stale_.contains(storage);
  };
  if (!computes_ && !indices_in_range(op, *stack, is_known)) {
    departure_.raised = true;
    stray(str("{} is given an index that is out of range", name_of(op)), /*records=*/false);
    return op.redispatchBoxed(below, stack);
  }
  if (changes_shown(trace_.calls[next_])) {
    stray(str("{} changes memory that the step's code looks into", name_of(op)), /*records=*/false);
    return run(op, below, stack);
  }
  const CallId id(next_);
  const ExpectedCall& expected = expected_[next_++];
  if (!computes_ && expected.read) return give_number(*expected.read, op, stack);
  if (computes_ || expected.runs) {
    run(op, below, stack);
    if (!expected.is_filled_later) meet_results(id, *stack);
    if (expected.read) note_number(id, constant_from_ivalue(stack->back(), op.schema().returns().at(0)).value());
    return;
  }
  skip(id, stack);
}

void Tracer::Observer::run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (recording_ != nullptr)
    recording_->call(op, below, stack);
  else
    op.redispatchBoxed(below, stack);
  note_made(op, *stack);
}

void Tracer::Observer::note_made(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (pause_ && !is_past_pause_) made_.note(torch::jit::last(stack, op.schema().returns().size()));
}

void Tracer::Observer::begin_event(const std::string& key) {
  if (heir_) return heir_->begin_event(key);
  if (recording_ != nullptr) return recording_->begin_event(key);
  marks_.push_back({key, next_, std::nullopt});
}

void Tracer::Observer::end_event() {
  if (heir_) return heir_->end_event();
  if (recording_ != nullptr) return recording_->end_event();
  if (!marks_.empty()) marks_.back().end = next_;
}

void Tracer::Observer::leave(const Callbacks* callbacks, const std::string& why, bool records) {
  if (heir_) return heir_->leave(callbacks, why, records);
  if (!is_following() || calls_host_) return;
  callbacks_ = callbacks != nullptr ? callbacks : callbacks_;
  stray(why, records);
}

bool Tracer::Observer::show(const at::Tensor& tensor, const void* values) {
  if (heir_) return heir_->show(tensor, values);
  if (!is_following() || computes_) return true;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (is_unreadable(*storage)) {
    const auto met =
        std::ranges::find_if(met_, [&](const MetStorage& one) { return one.address == storage && one.is_made; });
    if (met == met_.end() || tensor.nbytes() != storage->nbytes() || !tensor.is_non_overlapping_and_dense())
      return false;
    make_readable(*storage, memory_like(*storage));
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_observer(kObserverKey);
    tensor.copy_(at::from_blob(const_cast<void*>(values), tensor.sizes(), tensor.options()));
    filled_.insert(StorageId(static_cast<size_t>(met - met_.begin())));
    stale_.erase(storage);
  }
  if (stale_.contains(storage)) return false;
  shown_.insert(storage);
  return true;
}

void Tracer::Observer::hide(const at::Tensor& tensor) {
  if (heir_) return heir_->hide(tensor);
  if (const auto shown = shown_.find(tensor.storage().unsafeGetStorageImpl()); shown != shown_.end())
    shown_.erase(shown);
}

bool Tracer::Observer::is_held(StorageId storage) const {
  const MetStorage& met = met_[storage.index()];
  return met.is_made && met.weak && met.weak->use_count() > 0;
}

at::Tensor Tracer::Observer::held(ValueId value) const {
  return window_on(value, c10::Storage(met_[storage_of(value).index()].weak->lock()));
}

ValueId Tracer::Observer::held_beside(const std::vector<ValueId>& given) const {
  std::vector<bool> is_given(met_.size(), false);
  for (StorageId storage : given_at_pause_) is_given[storage.index()] = true;
  for (ValueId value : given)
    if (value.valid()) is_given[storage_of(value).index()] = true;
  for (size_t v = 0; v < trace_.values.size(); ++v) {
    const StorageId storage = trace_.values[v].storage;
    if (!is_given[storage.index()] && trace_.storages[storage.index()].bytes != 0 && is_held(storage))
      return ValueId(v);
  }
  return {};
}

void Tracer::Observer::give(ValueId value, const at::Tensor& result) {
  const StorageId storage = storage_of(value);
  if (!value.valid() || !is_held(storage) || !result.defined()) return;
  const auto held = met_[storage.index()].weak->lock();
  if (!held) return;
  if (result.storage().nbytes() != 0 && result.storage().data() == nullptr) return;  // given with an earlier result
  const bool is_shared = pause_ && !is_past_pause_;
  if (is_shared) given_at_pause_.insert(storage);
  if (!is_shared && given_at_pause_.contains(storage)) return;  // the program has had it since
  if (!is_unreadable(*held) && result.storage().data() == held->data_ptr().get()) return;
  const Value& window = trace_.values[value.index()];
  const bool is_whole = result.storage().nbytes() == held->nbytes() && result.storage_offset() == window.offset &&
                        result.strides() == c10::IntArrayRef(window.strides);
  if (is_whole && is_unreadable(*held)) {
    c10::StorageImpl* from = result.storage().unsafeGetStorageImpl();
    make_readable(*held,
                  is_shared ? memory_of(result.storage()) : from->set_data_ptr(c10::DataPtr(nullptr, from->device())));
    return;
  }
  if (is_unreadable(*held)) make_readable(*held, memory_like(*held));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  window_on(value, c10::Storage(held)).copy_(result);
}

bool Tracer::Observer::is_at_pause() const {
  return pause_ && !is_past_pause_ && next_ == trace_.events[*pause_].begin.index();
}

bool Tracer::Observer::pauses(const std::vector<at::Tensor>& outputs, int64_t structure) {
  if (!is_at_pause()) return false;
  const HostEvent& event = trace_.events[*pause_];
  const std::string number = str("{} ", structure);
  if (!event.key.starts_with(number) || event.outputs.size() != outputs.size()) return false;
  for (size_t o = 0; o < outputs.size(); ++o)
    if (!is_value(outputs[o], event.outputs[o])) return false;
  return computes_ || states_.are_as_recorded_at_pause(next_);
}

}  // namespace stepc
