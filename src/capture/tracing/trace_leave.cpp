// Leaving the trace: what was left out is computed, and the step goes on as it is.
#include <algorithm>

#include "aten/memory_regions.h"
#include "base/check.h"
#include "capture/tracing/trace_observer.h"

namespace stepc {

void Tracer::Observer::stray(std::string why, bool records) {
  departure_.difference = std::move(why);
  if (computes_) return;
  states_.look(next_);
  callbacks_->turn_back();
  // What the host's own calls have made is made once.
  const bool has_made = std::any_of(expected_.begin(), expected_.begin() + static_cast<ptrdiff_t>(next_),
                                    [](const ExpectedCall& one) { return one.made_by_host || one.is_filled_later; });
  const bool may_record = records && !has_made && !states_.were_set() && callbacks_->record;
  if (Recorder* const recorder = may_record ? callbacks_->record() : nullptr) recording_ = recorder->take_over();
  std::optional<ObserverScope> scope;
  if (recording_ != nullptr) scope.emplace(recording_);
  // What the program has been given at the pause stays as the program has it by now.
  std::vector<std::pair<c10::intrusive_ptr<c10::StorageImpl>, c10::DataPtr>> given;
  for (StorageId storage : given_at_pause_) {
    if (!is_held(storage)) continue;
    auto held = met_[storage.index()].weak->lock();
    c10::DataPtr memory = held->set_data_ptr(c10::DataPtr(nullptr, held->device()));
    make_unreadable(*held);
    given.emplace_back(std::move(held), std::move(memory));
  }
  compute_again();
  for (auto& [held, memory] : given) make_readable(*held, std::move(memory));
  if (recording_ != nullptr) recording_->as(nullptr);
}

void Tracer::Observer::compute_again() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  std::optional<c10::impl::ExcludeDispatchKeyGuard> below_observer;
  if (recording_ == nullptr) below_observer.emplace(kObserverKey);
  std::vector<std::vector<StorageId>> ends(next_);  // by call: storages that it is the last to name
  std::map<StorageId, size_t> last;
  for (size_t c = 0; c < next_; ++c) {
    const auto named = [&](ValueId value) { last[storage_of(value)] = c; };
    for_each_value(trace_.calls[c].args, named);
    for_each_value(trace_.calls[c].results, named);
  }
  for (const auto& [storage, call] : last) ends[call].push_back(storage);
  size_t supplied = 0;
  for (size_t c = 0; c < next_; ++c) {
    states_.before_computing(c);
    if (recording_ != nullptr) mark_again(c);
    compute(CallId(c), supplied);
    states_.after_computing(c);
    for (StorageId storage : ends[c]) alive_.erase(storage);
  }
  states_.before_computing(next_);
  if (recording_ != nullptr) mark_again(next_);
  alive_.clear();
}

void Tracer::Observer::mark_again(size_t c) {
  recording_->as(c < next_ ? &trace_.calls[c] : nullptr);
  for (const Mark& mark : marks_) {
    if (mark.begin < mark.end && mark.end == c) recording_->end_event();
    if (mark.begin != c) continue;
    const auto event = std::ranges::find_if(
        trace_.events, [&](const HostEvent& one) { return one.key == mark.key && one.begin.index() == mark.begin; });
    if (event == trace_.events.end()) {
      recording_->begin_event(mark.key);
    } else {
      std::vector<Rebinding> gradients;
      for (const Rebinding& one : event->gradients)
        gradients.push_back(one.value.valid() ? recording_->gradient(one.key, tensor_to_compute_on(one.value)) : one);
      recording_->begin_event(mark.key, std::move(gradients));
    }
    if (mark.end == c) recording_->end_event();
  }
}

c10::Storage Tracer::Observer::storage_to_compute_on(StorageId id) {
  const auto found = alive_.find(id);
  if (found != alive_.end()) return found->second;
  const MetStorage& met = met_[id.index()];
  INTERNAL_CHECK(met.address != nullptr, "a storage that the step never met");
  if (!met.is_made) {
    const auto kept = std::ranges::find_if(
        kept_, [&](const c10::Storage& storage) { return storage.unsafeGetStorageImpl() == met.address; });
    INTERNAL_CHECK(kept != kept_.end(), "a storage of the program's is gone");
    return *kept;
  }
  auto held = met.weak->lock();
  const c10::Storage storage =
      held ? c10::Storage(std::move(held))
           : unreadable_storage(static_cast<int64_t>(trace_.storages[id.index()].bytes), device_of(trace_, id));
  alive_.emplace(id, storage);
  return storage;
}

at::Tensor Tracer::Observer::tensor_to_compute_on(ValueId id) {
  if (!id.valid()) return {};
  const c10::Storage storage = storage_to_compute_on(storage_of(id));
  return window_on(id, storage);
}

c10::IValue Tracer::Observer::argument(const Arg& arg, const c10::Argument& schema, const c10::IValue& constant) {
  if (const auto* value = std::get_if<ValueId>(&arg)) return tensor_to_compute_on(*value);
  if (const auto* wrapped = std::get_if<WrappedNumber>(&arg)) return tensor_of(*wrapped);
  if (const auto* generator = std::get_if<GeneratorArg>(&arg)) return states_.generator(generator->generator);
  const auto* list = std::get_if<std::vector<ValueId>>(&arg);
  if (list == nullptr) return constant;
  const bool is_optional =
      schema.type()->expect<c10::ListType>()->getElementType()->kind() == c10::TypeKind::OptionalType;
  if (is_optional) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (ValueId id : *list) tensors.push_back(id.valid() ? std::optional(tensor_to_compute_on(id)) : std::nullopt);
    return tensors;
  }
  c10::List<at::Tensor> tensors;
  for (ValueId id : *list) tensors.push_back(tensor_to_compute_on(id));
  return tensors;
}

void Tracer::Observer::compute(CallId id, size_t& supplied) {
  const Call& call = trace_.calls[id.index()];
  const ExpectedCall& expected = expected_[id.index()];
  std::map<size_t, c10::IValue> numbers;
  for (; supplied < supplied_.size() && supplied_[supplied].call == id; ++supplied)
    numbers[supplied_[supplied].arg] = supplied_[supplied].number;
  const bool is_only_a_view = is_view(trace_, call);
  // What it makes is there.
  if ((is_only_a_view && recording_ == nullptr) || expected.made_by_host || expected.is_filled_later) return;
  torch::jit::Stack stack;
  for (size_t a = 0; a < call.args.size(); ++a) {
    const auto number = numbers.find(a);
    stack.push_back(number != numbers.end()
                        ? number->second
                        : argument(call.args[a], expected.op.schema().arguments()[a], expected.constants[a]));
  }
  expected.op.callBoxed(&stack);
  if (const auto given = numbers_.find(id.index()); given != numbers_.end() && departure_.decided_otherwise.empty()) {
    const auto now = constant_from_ivalue(stack.front(), expected.op.schema().returns().at(0));
    if (now && are_other_choices(given->second, *now)) departure_.decided_otherwise = place_of_read(trace_, id);
  }
  if (recording_ != nullptr)
    if (const auto read = std::ranges::find(trace_.reads, id, &HostRead::call); read != trace_.reads.end())
      recording_->read_at(read->source);
  if (is_only_a_view) return;
  for (size_t r = 0; r < call.results.size(); ++r) {
    if (const auto* value = std::get_if<ValueId>(&call.results[r])) {
      if (value->valid()) fill(*value, stack[r].toTensor());
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r])) {
      const std::vector<at::Tensor> tensors = stack[r].toTensorVector();
      for (size_t t = 0; t < list->size(); ++t)
        if ((*list)[t].valid()) fill((*list)[t], tensors[t]);
    }
  }
}

void Tracer::Observer::fill(ValueId value, const at::Tensor& computed) {
  if (!computed.defined()) return;
  const MetStorage& met = met_[storage_of(value).index()];
  if (!met.is_made) return;
  const c10::Storage storage = storage_to_compute_on(storage_of(value));
  c10::StorageImpl& held = *storage.unsafeGetStorageImpl();
  if (recording_ != nullptr && computed.storage().unsafeGetStorageImpl() != &held)
    recording_->moved(computed.storage().unsafeGetStorageImpl(), storage);
  const bool is_filled = filled_.contains(storage_of(value));
  if (!(is_filled || is_unreadable(held)) || computed.storage().unsafeGetStorageImpl() == &held) return;
  if (is_filled || computed.storage().nbytes() != held.nbytes()) {  // a kernel of its own lays it out otherwise
    if (!is_filled) make_readable(held, memory_like(held));
    window_on(value, storage).copy_(computed);
    return;
  }
  make_readable(held,
                computed.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, computed.device())));
}

}  // namespace stepc
