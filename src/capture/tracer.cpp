#include "capture/tracer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/constants.h"
#include "aten/memory_regions.h"
#include "aten/operators.h"
#include "aten/unreadable_storage.h"
#include "aten/virtual_memory.h"
#include "base/check.h"
#include "capture/index_range.h"
#include "capture/made_tensors.h"
#include "capture/observer.h"
#include "capture/recorder.h"
#include "capture/recording_state.h"
#include "capture/traced_states.h"
#include "ir/agree.h"

namespace stepc {

namespace {

bool declares_write(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_any_number(const Arg& arg) {
  return std::holds_alternative<int64_t>(arg) || std::holds_alternative<double>(arg) ||
         std::holds_alternative<std::complex<double>>(arg) || std::holds_alternative<WrappedNumber>(arg) ||
         std::holds_alternative<std::vector<double>>(arg);
}

// One call of the trace, ready to be compared with.
struct Expected {
  c10::OperatorHandle op;
  bool runs = false;                   // at once: a view, or one of the host's own calls
  bool is_filled_later = false;        // what it makes: by the host
  bool supplied = false;               // its numbers may be others: the host supplies them
  std::optional<size_t> read;          // the event that it ends with
  std::optional<size_t> made_by_host;  // the event that it is
  std::vector<c10::IValue> constants;  // by argument, where it is one
};

std::vector<Expected> expect(const Trace& trace) {
  std::vector<Expected> calls;
  for (const Call& call : trace.calls) {
    Expected one{find_operator(call.op), is_view(trace, call), makes_host_data(trace, call), false, {}, {}, {}};
    one.runs = one.runs || one.is_filled_later;
    const auto& schema = one.op.schema().arguments();
    for (size_t a = 0; a < call.args.size(); ++a) {
      const Arg& arg = call.args[a];
      const bool is_constant =
          !std::holds_alternative<ValueId>(arg) && !std::holds_alternative<std::vector<ValueId>>(arg) &&
          !std::holds_alternative<WrappedNumber>(arg) && !std::holds_alternative<GeneratorArg>(arg);
      one.constants.push_back(is_constant ? constant_to_ivalue(arg, schema.at(a)) : c10::IValue());
    }
    calls.push_back(std::move(one));
  }
  for (size_t e = 0; e < trace.events.size(); ++e) {
    const HostEvent& event = trace.events[e];
    if (event.kind != HostEvent::Kind::kRead)
      for (size_t c = event.begin.index(); c < event.end.index(); ++c) calls[c].supplied = true;
    for (CallId call : event.own_calls) calls[call.index()].runs = true;
    if (event.kind != HostEvent::Kind::kRead) continue;
    if (event.own_calls.empty()) {
      calls[event.begin.index() - 1].read = e;
    } else {
      calls[event.begin.index()].made_by_host = e;
      calls[event.begin.index()].runs = calls[event.begin.index()].is_filled_later = false;
    }
  }
  return calls;
}

// A storage's memory, for another storage to lie on, too.
c10::DataPtr memory_of(const c10::Storage& storage) {
  const auto let_go = [](void* holder) { delete static_cast<c10::Storage*>(holder); };
  return {storage.mutable_data(), new c10::Storage(storage), let_go, storage.device()};
}

c10::DataPtr memory_like(const c10::StorageImpl& storage) {
  return c10::GetAllocator(storage.device_type())->allocate(storage.nbytes());
}

// What a storage of the trace is in this run of the step.
struct Met {
  c10::StorageImpl* address = nullptr;                            // none: not met yet
  int64_t shift = 0;                                              // bytes that it begins later than recorded
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> weak;  // of one that the step makes
  bool is_made = false;
};

}  // namespace

class Tracer::Observer final : public CallObserver {
 public:
  explicit Observer(const Trace& trace)
      : trace_(trace),
        expected_(expect(trace)),
        written_(trace.storages.size()),
        states_(trace),
        pause_(find_pause(trace)) {
    for (const Call& call : trace.calls)
      for (ValueId value : call.writes) written_[storage_of(value).index()] = true;
    for (const External& external : trace.externals)
      if (external.owner == Owner::kHost) host_of_.emplace(storage_of(external.value), &external);
  }

  void bind(const std::vector<at::Tensor>& externals, std::vector<at::Generator> generators) {
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
    difference_.clear();
    raised_ = is_reseeded_ = false;
    numbers_.clear();
    decided_otherwise_.clear();
    decided_.clear();
    next_ = 0;
    for (size_t e = 0; e < trace_.externals.size(); ++e) {
      if (!externals[e].defined() || !externals[e].has_storage()) continue;
      kept_.push_back(externals[e].storage());
      meet(trace_.externals[e].value, externals[e]);
    }
  }
  // Lets go of the program's memory.
  void release() {
    kept_.clear();
    met_.clear();
    made_.clear();
    host_data_.clear();
    recording_.reset();
    heir_.reset();
  }

  // Goes on where `from` stands, if this trace begins as that one did and was given these numbers.
  bool take_over(const Observer& from) {
    const size_t calls = from.next_;
    if (expected_.size() < calls) return false;
    std::vector<HostSupply> supplied;
    size_t s = 0;
    for (size_t c = 0; c < calls; ++c) {
      std::map<size_t, c10::IValue> given;
      for (; s < from.supplied_.size() && from.supplied_[s].call == CallId(c); ++s)
        given[from.supplied_[s].arg] = from.supplied_[s].number;
      if (!begins_as(from, c, given, supplied)) return false;
    }
    if (!states_.take_over(from.states_, calls)) return false;
    if (from.is_past_pause_ && !comes_back_as(from)) return false;
    // Only of these calls the two traces number storages alike.
    bool is_same = true;
    const auto take = [&](ValueId value) { is_same = is_same && meets_as(from, value); };
    for (size_t c = 0; is_same && c < calls; ++c) {
      for_each_value(trace_.calls[c].args, take);
      for_each_value(trace_.calls[c].results, take);
    }
    if (!is_same) return false;
    for (const c10::Storage& storage : from.kept_) kept_.push_back(storage);
    stale_ = from.stale_;
    shown_ = from.shown_;
    filled_ = from.filled_;
    marks_ = from.marks_;
    made_ = from.made_;
    is_past_pause_ = from.is_past_pause_;
    given_at_pause_ = from.given_at_pause_;
    supplied_ = std::move(supplied);
    numbers_ = from.numbers_;
    plan_ = from.plan_;
    computes_ = from.computes_;
    recording_ = from.recording_;
    next_ = calls;
    return true;
  }

  void begin(const Plan* plan, bool computes) {
    plan_ = plan;
    computes_ = computes;
    if (computes_ && plan_->record) recording_ = plan_->record()->take_over();
  }

  // ---- a pause

  void pause(const std::vector<at::Tensor>& outputs, int64_t structure) {
    if (heir_) return heir_->pause(outputs, structure);
    if (!is_following() || pauses(outputs, structure)) return;
    if (hand_over([&](Observer& other) { return other.pauses(outputs, structure); })) return;
    stray("its part before the pause ends otherwise than was recorded", /*records=*/false);
  }
  void resume(const std::vector<at::Tensor>& incoming) {
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
  [[nodiscard]] size_t pause_event() const { return pause_.value(); }
  std::vector<at::Tensor> held() override {
    if (heir_) return heir_->held();
    std::vector<at::Tensor> held = made_.held();
    std::erase_if(held, [&](const at::Tensor& tensor) {
      const auto* storage = tensor.storage().unsafeGetStorageImpl();
      return !tensor.requires_grad() &&
             std::ranges::find(kept_, storage, &c10::Storage::unsafeGetStorageImpl) != kept_.end();
    });
    return held;
  }
  void note(const at::Tensor& tensor) override {
    if (heir_) return heir_->note(tensor);
    made_.note(tensor);
  }

  void end() {
    if (heir_) return heir_->end();
    // What the recorder itself looked at the results with.
    while (is_following() && next_ != expected_.size() && is_view(trace_, trace_.calls[next_])) ++next_;
    if (is_following() && !is_at_end()) {
      if (hand_over([](Observer& other) { return other.is_at_end(); })) return heir_->end();
      stray(next_ == expected_.size() ? "it leaves a random generator in another state"
                                      : str("it makes {} calls and {} were recorded", next_, expected_.size()));
    }
    if (!is_following() && !computes_) states_.replace_marks();
    plan_ = nullptr;
  }
  // What was thrown by the step, perhaps on its way through a kernel.
  void stop() {
    if (heir_) return heir_->stop();
    if (is_following()) stray("it ends with an error", /*records=*/false);
    if (!computes_) states_.replace_marks();
    plan_ = nullptr;
  }

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
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
      raised_ = true;
      stray(str("{} is given an index that is out of range", name_of(op)), /*records=*/false);
      return op.redispatchBoxed(below, stack);
    }
    if (changes_shown(trace_.calls[next_])) {
      stray(str("{} changes memory that the step's code looks into", name_of(op)), /*records=*/false);
      return run(op, below, stack);
    }
    const CallId id(next_);
    const Expected& expected = expected_[next_++];
    if (!computes_ && expected.read) return give_number(*expected.read, op, stack);
    if (computes_ || expected.runs) {
      run(op, below, stack);
      if (!expected.is_filled_later) meet_results(id, *stack);
      if (expected.read) note_number(id, constant_from_ivalue(stack->back(), op.schema().returns().at(0)).value());
      return;
    }
    skip(id, stack);
  }

  void begin_event(const std::string& key) override {
    if (heir_) return heir_->begin_event(key);
    if (recording_ != nullptr) return recording_->begin_event(key);
    marks_.push_back({key, next_, std::nullopt});
  }
  void end_event() override {
    if (heir_) return heir_->end_event();
    if (recording_ != nullptr) return recording_->end_event();
    if (!marks_.empty()) marks_.back().end = next_;
  }
  RecordingState* recording() override { return heir_ ? heir_->recording() : recording_.get(); }

  void leave(const Plan* plan, const std::string& why, bool records) {
    if (heir_) return heir_->leave(plan, why, records);
    if (!is_following() || calls_host_) return;
    plan_ = plan != nullptr ? plan : plan_;
    stray(why, records);
  }

  bool show(const at::Tensor& tensor, const void* values) {
    if (heir_) return heir_->show(tensor, values);
    if (!is_following() || computes_) return true;
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    if (is_unreadable(*storage)) {
      const auto met =
          std::ranges::find_if(met_, [&](const Met& one) { return one.address == storage && one.is_made; });
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
  void hide(const at::Tensor& tensor) {
    if (heir_) return heir_->hide(tensor);
    if (const auto shown = shown_.find(tensor.storage().unsafeGetStorageImpl()); shown != shown_.end())
      shown_.erase(shown);
  }

  [[nodiscard]] bool is_following() const { return difference_.empty(); }
  [[nodiscard]] bool is_compared() const { return heir_ ? heir_->is_compared() : is_following(); }
  [[nodiscard]] const std::string& difference() const { return difference_; }
  [[nodiscard]] bool raised() const { return raised_; }
  [[nodiscard]] bool is_reseeded() const { return is_reseeded_; }
  [[nodiscard]] const std::string& decided_otherwise() const { return decided_otherwise_; }
  [[nodiscard]] const std::string& decided() const { return decided_; }
  [[nodiscard]] const std::map<size_t, Arg>& numbers() const { return numbers_; }
  [[nodiscard]] const std::vector<HostSupply>& supplied() const { return supplied_; }
  [[nodiscard]] const std::map<std::string, at::Tensor>& host_data() const { return host_data_; }

  [[nodiscard]] bool is_held(StorageId storage) const {
    const Met& met = met_[storage.index()];
    return met.is_made && met.weak && met.weak->use_count() > 0;
  }
  [[nodiscard]] at::Tensor held(ValueId value) const {
    return window_on(value, c10::Storage(met_[storage_of(value).index()].weak->lock()));
  }
  [[nodiscard]] StorageId storage_of(ValueId value) const { return trace_.values[value.index()].storage; }

  [[nodiscard]] ValueId held_beside(const std::vector<ValueId>& given) const {
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

  // At the pause the plan goes on to read what it gives.
  void give(ValueId value, const at::Tensor& result) {
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
      make_readable(
          *held, is_shared ? memory_of(result.storage()) : from->set_data_ptr(c10::DataPtr(nullptr, from->device())));
      return;
    }
    if (is_unreadable(*held)) make_readable(*held, memory_like(*held));
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    window_on(value, c10::Storage(held)).copy_(result);
  }

 private:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
    if (recording_ != nullptr)
      recording_->call(op, below, stack);
    else
      op.redispatchBoxed(below, stack);
    note_made(op, *stack);
  }
  void note_made(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    if (pause_ && !is_past_pause_) made_.note(torch::jit::last(stack, op.schema().returns().size()));
  }
  [[nodiscard]] bool is_at_pause() const {
    return pause_ && !is_past_pause_ && next_ == trace_.events[*pause_].begin.index();
  }
  // Whether the trace pauses here, with these outputs.
  bool pauses(const std::vector<at::Tensor>& outputs, int64_t structure) {
    if (!is_at_pause()) return false;
    const HostEvent& event = trace_.events[*pause_];
    const std::string number = str("{} ", structure);
    if (!event.key.starts_with(number) || event.outputs.size() != outputs.size()) return false;
    for (size_t o = 0; o < outputs.size(); ++o)
      if (!is_value(outputs[o], event.outputs[o])) return false;
    return computes_ || states_.are_as_recorded_at_pause(next_);
  }

  // ---- another trace

  template <class Test>
  bool hand_over(const Test& goes_on) {
    if (!computes_) states_.look(next_);
    while (Tracer* const tracer = plan_->other ? plan_->other() : nullptr) {
      const std::shared_ptr<Observer> other = tracer->observer_;
      if (!other->take_over(*this) || !goes_on(*other)) {
        other->release();
        continue;
      }
      heir_ = other;
      recording_.reset();
      plan_->took_over();
      if (!computes_) other->states_.ran_instead();
      return true;
    }
    return false;
  }

  // Whether call `c` is that of `from`, which was given these numbers; adds to what this trace is supplied with.
  bool begins_as(const Observer& from, size_t c, const std::map<size_t, c10::IValue>& given,
                 std::vector<HostSupply>& supplied) const {
    const Call& mine = trace_.calls[c];
    const Call& theirs = from.trace_.calls[c];
    const bool same_kind = mine.op == theirs.op && mine.args.size() == theirs.args.size() &&
                           mine.writes == theirs.writes && expected_[c].runs == from.expected_[c].runs &&
                           expected_[c].made_by_host.has_value() == from.expected_[c].made_by_host.has_value() &&
                           expected_[c].read.has_value() == from.expected_[c].read.has_value();
    const bool reads = mine.results.size() == 1 && !std::holds_alternative<ValueId>(mine.results.front()) &&
                       !std::holds_alternative<std::vector<ValueId>>(mine.results.front());
    if (!same_kind || (!reads && mine.results != theirs.results)) return false;  // a number is that of its own step
    for (size_t a = 0; a < mine.args.size(); ++a) {
      const auto number = given.find(a);
      if (number == given.end()) {
        if (mine.args[a] != theirs.args[a] && !is_given_by_host(expected_[c], mine.args[a])) return false;
        if (expected_[c].supplied && is_any_number(mine.args[a])) {
          const auto* wrapped = std::get_if<WrappedNumber>(&mine.args[a]);
          supplied.push_back({CallId(c), a, wrapped ? c10::IValue(tensor_of(*wrapped)) : expected_[c].constants[a]});
        }
      } else if (expected_[c].supplied) {
        supplied.push_back({CallId(c), a, number->second});
      } else {
        return false;
      }
    }
    bool same_values = true;
    const auto compare = [&](ValueId id) {
      same_values = same_values && id.index() < from.trace_.values.size() &&
                    trace_.values[id.index()] == from.trace_.values[id.index()];
    };
    for_each_value(mine.args, compare);
    for_each_value(mine.results, compare);
    return same_values;
  }

  // Whether this trace pauses as that of `from` does, which is past it; what came in there has come in here.
  bool comes_back_as(const Observer& from) {
    if (!pause_ || !(trace_.events[*pause_] == from.trace_.events[*from.pause_])) return false;
    for (const External& external : trace_.externals) {
      if (external.owner != Owner::kIncoming) continue;
      const auto is_same = [&](const External& other) {
        return other.owner == external.owner && other.key == external.key;
      };
      const auto other = std::ranges::find_if(from.trace_.externals, is_same);
      if (other == from.trace_.externals.end()) return false;
      met_[storage_of(external.value).index()] = from.met_[from.storage_of(other->value).index()];
    }
    return true;
  }

  // Whether `value` lies here on the memory that `from` has met in its place. What the step makes has none but that;
  // what it is given is this plan's own input, and so the same tensor, the same bytes or the host's data.
  bool meets_as(const Observer& from, ValueId value) {
    const StorageId storage = storage_of(value);
    const Met& theirs = from.met_[storage.index()];
    Met& mine = met_[storage.index()];
    const bool is_given = trace_.storages[storage.index()].external;
    if (is_given != from.trace_.storages[storage.index()].external) return false;
    if (theirs.address == nullptr) return true;
    if (!is_given) {
      mine = theirs;
      return true;
    }
    if (mine.address != nullptr) return mine.address == theirs.address && mine.shift == theirs.shift;
    const auto kept = std::ranges::find(from.kept_, theirs.address, &c10::Storage::unsafeGetStorageImpl);
    if (kept == from.kept_.end() || is_unreadable(*theirs.address) || from.stale_.contains(theirs.address))
      return false;
    return is_constant(storage, from.window_on(value, *kept)) && mine.shift == theirs.shift;
  }

  // ---- comparing

  void meet(ValueId value, const at::Tensor& tensor) {
    Met& met = met_[storage_of(value).index()];
    if (met.address != nullptr) return;
    met.address = tensor.storage().unsafeGetStorageImpl();
    met.is_made = !trace_.storages[storage_of(value).index()].external;
    const Value& window = trace_.values[value.index()];
    if (!met.is_made) met.shift = (tensor.storage_offset() - window.offset) * size_of(window.dtype);
    if (met.is_made) met.weak.emplace(tensor.storage().getWeakStorageImpl());
  }

  // Memory of the host's own is that of an external of kind kHost: neither what the plan makes nor what it writes to.
  bool adopt(const External& external, const at::Tensor& tensor) {
    const Value& window = trace_.values[external.value.index()];
    Met& met = met_[window.storage.index()];
    c10::StorageImpl* const address = tensor.storage().unsafeGetStorageImpl();
    const bool is_written = written_[window.storage.index()];
    for (size_t s = 0; s < met_.size(); ++s)
      if (met_[s].address == address && (met_[s].is_made || written_[s] || is_written)) return false;
    const int64_t size = size_of(window.dtype);
    const bool is_window = tensor.sizes() == c10::IntArrayRef(window.sizes) &&
                           tensor.strides() == c10::IntArrayRef(window.strides) &&
                           tensor.scalar_type() == scalar_type_of(window.dtype);
    if (!is_window && tensor.storage().nbytes() != trace_.storages[window.storage.index()].bytes) return false;
    met.address = address;
    met.shift = is_window ? (tensor.storage_offset() - window.offset) * size : 0;
    kept_.push_back(tensor.storage());
    host_data_[external.key] = window_on(external.value, tensor.storage());
    return true;
  }

  // A tensor that host data made: the same bytes as the recorded one's.
  bool is_constant(StorageId storage, const at::Tensor& tensor) {
    if (!trace_.storages[storage.index()].external || met_[storage.index()].address != nullptr) return false;
    for (const External& external : trace_.externals) {
      const bool is_host_data = external.owner == Owner::kHost;
      if (storage_of(external.value) != storage || (external.owner != Owner::kConstant && !is_host_data)) continue;
      if (is_host_data) return adopt(external, tensor);
      const auto found = std::ranges::find(trace_.constants, external.key, &Constant::key);
      if (found == trace_.constants.end() || tensor.storage().nbytes() != found->bytes.size()) return false;
      if (bytes_of(tensor.storage()) != found->bytes) return false;
      met_[storage.index()].address = tensor.storage().unsafeGetStorageImpl();
      kept_.push_back(tensor.storage());
      return true;
    }
    return false;
  }

  bool is_value(const at::Tensor& tensor, ValueId id) {
    if (!id.valid() || !tensor.defined()) return !id.valid() && !tensor.defined();
    if (!is_planned(tensor)) return false;
    const Value& value = trace_.values[id.index()];
    const Met& met = met_[value.storage.index()];
    const bool known = met.address == tensor.storage().unsafeGetStorageImpl();
    if (!known && !is_constant(value.storage, tensor)) return false;
    return tensor.sizes() == c10::IntArrayRef(value.sizes) && tensor.strides() == c10::IntArrayRef(value.strides) &&
           tensor.storage_offset() * size_of(value.dtype) == value.offset * size_of(value.dtype) + met.shift &&
           tensor.scalar_type() == scalar_type_of(value.dtype) && tensor.is_conj() == value.conj &&
           tensor.is_neg() == value.neg;
  }

  bool are_values(const c10::IValue& given, const std::vector<ValueId>& ids) {
    if (!given.isList()) return false;
    const auto list = given.toListRef();
    if (list.size() != ids.size()) return false;
    for (size_t i = 0; i < ids.size(); ++i)
      if (!is_value(list[i].isNone() ? at::Tensor() : list[i].toTensor(), ids[i])) return false;
    return true;
  }

  bool is_generator(const c10::IValue& given, GeneratorArg expected) {
    return given.isGenerator() && states_.is_generator(given.toGenerator(), expected.generator);
  }

  static bool is_same(const c10::IValue& a, const c10::IValue& b) {
    if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
    if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
    if (a.isDouble() && b.isDouble()) return same_number(a.toDouble(), b.toDouble());
    if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
    if (a.isDouble() || b.isDouble() || a.isInt() || b.isInt() || a.isBool() || b.isBool()) return false;
    if (a.isIntList() && b.isIntList()) return a.toIntVector() == b.toIntVector();
    return false;
  }

  // Whether the next call of the trace is this one; takes the numbers that the host supplies.
  bool follows(const c10::OperatorHandle& op, const torch::jit::Stack& stack, bool takes = true) {
    why_ = nullptr;
    is_reseeded_ = false;
    if (next_ == expected_.size() || is_at_pause()) return false;
    const Expected& expected = expected_[next_];
    if (!(expected.op == op)) return false;
    const Call& call = trace_.calls[next_];
    const auto args = torch::jit::last(stack, call.args.size());
    const auto& schema = op.schema().arguments();
    const size_t supplied = supplied_.size();
    for (size_t i = 0; i < call.args.size(); ++i) {
      const bool same = is_argument(expected, call.args[i], args[i], i, schema[i]);
      if (same) continue;
      why_ = &schema[i];
      supplied_.resize(supplied);
      return false;
    }
    is_reseeded_ = computes_ ? !states_.is_seeded_as_recorded(next_) : !states_.are_as_recorded(next_);
    if (is_reseeded_) return false;
    if (!takes) supplied_.resize(supplied);
    return true;
  }

  // Of a step that ends here.
  bool is_at_end() { return next_ == expected_.size() && (computes_ || states_.are_as_recorded(next_)); }

  bool is_argument(const Expected& expected, const Arg& arg, const c10::IValue& given, size_t index,
                   const c10::Argument& schema) {
    if (const auto* wrapped = std::get_if<WrappedNumber>(&arg)) {
      if (!given.isTensor() || !given.toTensor().defined()) return false;
      const auto number = wrapped_number_of(given.toTensor());
      if (!number || number->number.index() != wrapped->number.index()) return false;
      if (expected.supplied) return supply(index, given);
      return *number == *wrapped;
    }
    if (const auto* value = std::get_if<ValueId>(&arg)) {
      if (given.isNone()) return !value->valid();
      return given.isTensor() && is_value(given.toTensor(), *value);
    }
    if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) return are_values(given, *list);
    if (const auto* generator = std::get_if<GeneratorArg>(&arg)) return is_generator(given, *generator);
    if (is_given_by_host(expected, arg)) return true;
    const c10::IValue& constant = expected.constants[index];
    if (is_same(constant, given)) return !expected.supplied || !is_any_number(arg) || supply(index, given);
    if (expected.supplied && is_any_number(arg)) {
      const auto other = constant_from_ivalue(given, schema);
      return other && other->index() == arg.index() && supply(index, given);
    }
    if (given.isTensor() || given.isDouble() || given.isInt() || given.isBool() || given.isNone()) return false;
    const auto other = constant_from_ivalue(given, schema);
    return other && *other == arg;
  }
  bool supply(size_t arg, const c10::IValue& number) {
    supplied_.push_back({CallId(next_), arg, number});
    return true;
  }

  std::string difference_of(const c10::OperatorHandle& op) const {
    const std::string name = name_of(op);
    if (next_ == expected_.size()) return str("it calls {} where nothing more was recorded", name);
    if (is_at_pause()) return str("it calls {} where nothing more was recorded before the pause", name);
    const Call& call = trace_.calls[next_];
    const std::string where = call.module.empty() ? std::string() : str(" in '{}'", call.module);
    if (is_reseeded_)
      return str(
          "a random generator is in another state before {}{} than was recorded: a seed that changes from step "
          "to step is no number of a plan",
          name, where);
    if (why_ == nullptr) return str("it calls {} where {}{} was recorded", name, call.op, where);
    return str("it passes another '{}' to {}{} than was recorded", why_->name(), call.op, where);
  }

  // ---- calls that the host makes itself

  // What such a call is given beside tensors: whatever it is.
  static bool is_given_by_host(const Expected& expected, const Arg& arg) {
    return expected.made_by_host && !std::holds_alternative<ValueId>(arg) &&
           !std::holds_alternative<std::vector<ValueId>>(arg);
  }

  // Now, on what the plan has computed for it by then; what it throws is thrown where eager throws it.
  void make_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
    const auto args = torch::jit::last(*stack, op.schema().arguments().size());
    torch::jit::Stack own(args.begin(), args.end());
    std::vector<at::Tensor> given;
    if (!computes_) {
      given = plan_->reach(*expected_[next_].made_by_host);
      states_.ran();
      put(given, own);
    }
    calls_host_ = true;
    try {
      run(op, below, &own);
    } catch (...) {
      calls_host_ = false;
      raised_ = true;
      stray(str("{} ends with an error", name_of(op)), /*records=*/false);
      throw;
    }
    calls_host_ = false;
    if (makes(next_, own)) return take(own, stack);  // what is recorded gives nothing back that it is given
    const std::string& line = trace_.events[*expected_[next_].made_by_host].key;
    const std::string why = str("{}{} makes a tensor whose shape depends on data", name_of(op),
                                line.empty() ? std::string() : str(" (at {})", line));
    const auto makes_it = [&](Observer& other) {
      return other.next_ < other.expected_.size() && other.expected_[other.next_].made_by_host.has_value() &&
             other.follows(op, *stack) && other.makes(other.next_, own);
    };
    if (hand_over(makes_it)) return heir_->take(own, stack);
    stray(why, /*records=*/false);  // the call is made
    torch::jit::drop(*stack, op.schema().arguments().size());
    for (c10::IValue& result : own) stack->push_back(std::move(result));
  }

  // `given` in the places of the call's tensors.
  void put(const std::vector<at::Tensor>& given, torch::jit::Stack& args) const {
    const Call& call = trace_.calls[next_];
    size_t next = 0;
    for (size_t a = 0; a < args.size(); ++a) {
      if (const auto* value = std::get_if<ValueId>(&call.args[a])) {
        if (value->valid()) args[a] = given.at(next++);
      } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.args[a])) {
        c10::List<at::Tensor> tensors;
        c10::List<std::optional<at::Tensor>> optionals;
        for (ValueId id : *list) {
          const at::Tensor tensor = id.valid() ? given.at(next++) : at::Tensor();
          tensors.push_back(tensor);
          optionals.push_back(id.valid() ? std::optional(tensor) : std::nullopt);
        }
        args[a] = args[a].isOptionalTensorList() ? c10::IValue(optionals) : c10::IValue(tensors);
      }
    }
  }

  // Whether these are results of call `c`.
  [[nodiscard]] bool makes(size_t c, const torch::jit::Stack& results) const {
    bool same = true;
    for_each_result(CallId(c), results, [&](ValueId id, const at::Tensor& made) {
      if (!id.valid() || !made.defined()) return void(same = same && id.valid() == made.defined());
      const Value& value = trace_.values[id.index()];
      same = same && is_planned(made) && made.sizes() == c10::IntArrayRef(value.sizes) &&
             made.strides() == c10::IntArrayRef(value.strides) && made.storage_offset() == value.offset &&
             made.scalar_type() == scalar_type_of(value.dtype) && made.is_conj() == value.conj &&
             made.is_neg() == value.neg;
    });
    return same;
  }

  // They are real, the host's own, and the plan's data.
  void take(torch::jit::Stack& results, torch::jit::Stack* stack) {
    const CallId id(next_++);
    for_each_result(id, results, [&](ValueId value, const at::Tensor& made) {
      if (!value.valid()) return;
      meet(value, made);
      kept_.push_back(made.storage());
      for (const External& external : trace_.externals)
        if (external.owner == Owner::kHost && external.value == value) host_data_[external.key] = made;
    });
    torch::jit::drop(*stack, trace_.calls[id.index()].args.size());
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }

  template <class F>
  void for_each_result(CallId id, const torch::jit::Stack& values, F&& f) const {
    const Call& call = trace_.calls[id.index()];
    for (size_t r = 0; r < call.results.size(); ++r) {
      if (const auto* value = std::get_if<ValueId>(&call.results[r])) {
        f(*value, values[r].isTensor() ? values[r].toTensor() : at::Tensor());
      } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r])) {
        const auto tensors = values[r].toTensorVector();
        for (size_t t = 0; t < std::max(list->size(), tensors.size()); ++t)
          f(t < list->size() ? (*list)[t] : ValueId(), t < tensors.size() ? tensors[t] : at::Tensor());
      }
    }
  }

  // ---- instead of computing

  void meet_results(CallId id, const torch::jit::Stack& stack) {
    const Call& call = trace_.calls[id.index()];
    const auto values = torch::jit::last(stack, call.results.size());
    for (size_t r = 0; r < call.results.size(); ++r) {
      const auto one = [&](ValueId value, const at::Tensor& tensor) {
        if (!value.valid() || !tensor.defined() || !tensor.has_storage()) return;
        const auto host = host_of_.find(storage_of(value));
        if (host == host_of_.end())
          meet(value, tensor);
        else if (met_[storage_of(value).index()].address == nullptr)
          adopt(*host->second, tensor);
      };
      if (const auto* value = std::get_if<ValueId>(&call.results[r])) {
        if (values[r].isTensor()) one(*value, values[r].toTensor());
      } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r])) {
        const auto tensors = values[r].toTensorVector();
        for (size_t t = 0; t < list->size() && t < tensors.size(); ++t) one((*list)[t], tensors[t]);
      }
    }
  }

  at::Tensor made(ValueId id) {
    if (!id.valid()) return {};
    const StorageId storage = storage_of(id);
    Met& met = met_[storage.index()];
    if (met.address == nullptr) {
      const auto bytes = static_cast<int64_t>(trace_.storages[storage.index()].bytes);
      at::Tensor tensor = window_on(id, unreadable_storage(bytes, device_of(trace_, storage_of(id))));
      meet(id, tensor);
      return tensor;
    }
    // Another window on what an earlier result of the same call lies on.
    const auto held = met.weak->lock();
    INTERNAL_CHECK(held, "a call makes a window on memory that is gone");
    return window_on(id, c10::Storage(held));
  }

  at::Tensor window_on(ValueId id, const c10::Storage& storage) const {
    const Value& value = trace_.values[id.index()];
    const int64_t shift = met_[value.storage.index()].shift / size_of(value.dtype);
    at::Tensor tensor =
        tensor_on(storage, value.sizes, value.strides, value.offset + shift, scalar_type_of(value.dtype));
    if (value.conj) tensor._set_conj(true);
    if (value.neg) tensor._set_neg(true);
    return tensor;
  }

  // Leaves results that look right: what a call that writes was given, and memory that is not there.
  void skip(CallId id, torch::jit::Stack* stack) {
    const Call& call = trace_.calls[id.index()];
    const auto& schema = expected_[id.index()].op.schema();
    std::vector<c10::IValue> written;
    const auto args = torch::jit::last(*stack, schema.arguments().size());
    for (size_t i = 0; i < args.size(); ++i)
      if (declares_write(schema.arguments()[i])) written.push_back(args[i]);
    states_.skipped(id.index());
    for (ValueId value : call.writes) {
      c10::StorageImpl* const storage = met_[storage_of(value).index()].address;
      stale_.insert(storage);
      if (filled_.erase(storage_of(value)) != 0) make_unreadable(*storage);
    }
    std::vector<c10::IValue> results;
    for (size_t r = 0; r < schema.returns().size(); ++r) {
      if (declares_write(schema.returns()[r]) && !written.empty()) {
        results.push_back(written[std::min(r, written.size() - 1)]);
      } else if (const auto* value = std::get_if<ValueId>(&call.results[r])) {
        results.emplace_back(made(*value));
      } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r])) {
        c10::List<at::Tensor> tensors;
        for (ValueId one : *list) tensors.push_back(made(one));
        results.emplace_back(std::move(tensors));
      } else {
        results.push_back(constant_to_ivalue(call.results[r], schema.returns()[r]));
      }
    }
    torch::jit::drop(*stack, schema.arguments().size());
    for (c10::IValue& result : results) stack->push_back(std::move(result));
    note_made(expected_[id.index()].op, *stack);
  }

  [[nodiscard]] bool changes_shown(const Call& call) const {
    return !computes_ && !shown_.empty() && std::ranges::any_of(call.writes, [&](ValueId value) {
      return shown_.contains(met_[storage_of(value).index()].address);
    });
  }

  void give_number(size_t event, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const Arg number = plan_->read(event);
    states_.ran();
    note_number(CallId(next_ - 1), number);
    torch::jit::drop(*stack, op.schema().arguments().size());
    stack->push_back(constant_to_ivalue(number, op.schema().returns().at(0)));
  }

  // `decided_`: the last one is another choice than the recorded, and what comes next may follow from it.
  void note_number(CallId id, const Arg& number) {
    numbers_[id.index()] = number;
    decided_ = are_other_choices(number, trace_.calls[id.index()].results.front()) ? place_of_read(trace_, id) : "";
  }

  // ---- leaving the trace

  // Everything that was left out is computed, in order, into the memory that the step holds.
  void stray(std::string why, bool records = true) {
    difference_ = std::move(why);
    if (computes_) return;
    states_.look(next_);
    plan_->turn_back();
    // What the host's own calls have made is made once.
    const bool has_made = std::any_of(expected_.begin(), expected_.begin() + static_cast<ptrdiff_t>(next_),
                                      [](const Expected& one) { return one.made_by_host || one.is_filled_later; });
    const bool may_record = records && !has_made && !states_.were_set() && plan_->record;
    if (Recorder* const recorder = may_record ? plan_->record() : nullptr) recording_ = recorder->take_over();
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

  void compute_again() {
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

  // The host's marks that it set before call `c`.
  void mark_again(size_t c) {
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

  c10::Storage storage_to_compute_on(StorageId id) {
    const auto found = alive_.find(id);
    if (found != alive_.end()) return found->second;
    const Met& met = met_[id.index()];
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

  at::Tensor tensor_to_compute_on(ValueId id) {
    if (!id.valid()) return {};
    const c10::Storage storage = storage_to_compute_on(storage_of(id));
    return window_on(id, storage);
  }

  c10::IValue argument(const Arg& arg, const c10::Argument& schema, const c10::IValue& constant) {
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

  void compute(CallId id, size_t& supplied) {
    const Call& call = trace_.calls[id.index()];
    const Expected& expected = expected_[id.index()];
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
    if (const auto given = numbers_.find(id.index()); given != numbers_.end() && decided_otherwise_.empty()) {
      const auto now = constant_from_ivalue(stack.front(), expected.op.schema().returns().at(0));
      if (now && are_other_choices(given->second, *now)) decided_otherwise_ = place_of_read(trace_, id);
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

  // What was just computed as `value`, where the step sees it.
  void fill(ValueId value, const at::Tensor& computed) {
    if (!computed.defined()) return;
    const Met& met = met_[storage_of(value).index()];
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

  struct Mark {
    std::string key;
    size_t begin = 0;
    std::optional<size_t> end;  // none yet
  };

  const Trace& trace_;
  const std::vector<Expected> expected_;
  std::vector<bool> written_;                     // by storage: some call writes to it
  std::map<StorageId, const External*> host_of_;  // of kind kHost
  TracedStates states_;
  std::optional<size_t> pause_;  // among the trace's events
  bool is_past_pause_ = false;
  std::set<StorageId> given_at_pause_;
  MadeTensors made_;                           // until then
  std::vector<Mark> marks_;                    // that the host has set so far
  std::shared_ptr<RecordingState> recording_;  // where everything is computed, of that; else since the step left
  std::vector<Met> met_;                       // by storage
  std::vector<c10::Storage> kept_;             // the program's, and constants
  std::map<StorageId, c10::Storage> alive_;    // while what was left out is computed
  const Plan* plan_ = nullptr;
  bool computes_ = false;
  std::shared_ptr<Observer> heir_;  // goes on in this one's stead
  size_t next_ = 0;
  bool calls_host_ = false;             // and its calls are its own
  const c10::Argument* why_ = nullptr;  // the argument that differed
  std::string difference_;
  bool raised_ = false;            // at a call that did
  bool is_reseeded_ = false;       // a random generator is in another state
  std::map<size_t, Arg> numbers_;  // that the host has read, by call
  std::string decided_;
  std::string decided_otherwise_;
  std::vector<HostSupply> supplied_;
  std::map<std::string, at::Tensor> host_data_;
  std::set<const c10::StorageImpl*> stale_;       // written by calls that were left out
  std::multiset<const c10::StorageImpl*> shown_;  // what the step's code looks into, by each that does
  std::set<StorageId> filled_;                    // that the step makes, with the values of now
};

std::vector<HostSupply> numbers_supplied(const Trace& trace, const Trace& recorded, size_t end) {
  std::vector<HostSupply> out;
  for (const HostEvent& event : trace.events) {
    if (event.kind == HostEvent::Kind::kRead || event.end.index() > end) continue;
    for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
      const Call& call = recorded.calls.at(c);
      const auto& schema = find_operator(call.op).schema().arguments();
      for (size_t a = 0; a < call.args.size(); ++a) {
        if (!is_any_number(call.args[a])) continue;
        const auto* wrapped = std::get_if<WrappedNumber>(&call.args[a]);
        out.push_back({CallId(c), a,
                       wrapped ? c10::IValue(tensor_of(*wrapped)) : constant_to_ivalue(call.args[a], schema.at(a))});
      }
    }
  }
  return out;
}

bool are_other_choices(const Arg& one, const Arg& other) {
  return one.index() == other.index() && !(one == other) &&
         (std::holds_alternative<bool>(one) || std::holds_alternative<int64_t>(one));
}

std::string place_of_read(const Trace& trace, CallId call) {
  const auto read = std::ranges::find(trace.reads, call, &HostRead::call);
  return read == trace.reads.end() || read->source.empty() ? "in the step" : "at " + read->source;
}

Tracer::Tracer(const Trace& trace) : observer_(std::make_shared<Observer>(trace)) {}
Tracer::~Tracer() = default;

void Tracer::bind(const std::vector<at::Tensor>& externals, std::vector<at::Generator> generators) {
  observer_->bind(externals, std::move(generators));
}
void Tracer::release() { observer_->release(); }

void Tracer::begin(const Plan& plan, bool computes) { observer_->begin(&plan, computes); }

void Tracer::run(const std::function<void()>& part) {
  try {
    const ObserverScope scope(observer_);
    part();
  } catch (...) {
    observer_->stop();
    throw;
  }
}

void Tracer::pause(const std::vector<at::Tensor>& outputs, int64_t structure) { observer_->pause(outputs, structure); }
void Tracer::resume(const std::vector<at::Tensor>& incoming) { observer_->resume(incoming); }
void Tracer::end() { observer_->end(); }
size_t Tracer::pause_event() const { return observer_->pause_event(); }

const std::string& Tracer::difference() const { return observer_->difference(); }
bool Tracer::raised() const { return observer_->raised(); }
bool Tracer::is_reseeded() const { return observer_->is_reseeded(); }
const std::string& Tracer::decided() const { return observer_->decided(); }
const std::string& Tracer::decided_otherwise() const { return observer_->decided_otherwise(); }
const std::map<size_t, Arg>& Tracer::numbers() const { return observer_->numbers(); }
const std::map<std::string, at::Tensor>& Tracer::host_data() const { return observer_->host_data(); }
const std::vector<HostSupply>& Tracer::supplied() const { return observer_->supplied(); }
bool Tracer::is_held(ValueId value) const { return value.valid() && observer_->is_held(observer_->storage_of(value)); }
ValueId Tracer::held_beside(const std::vector<ValueId>& given) const { return observer_->held_beside(given); }
at::Tensor Tracer::held(ValueId value) const { return is_held(value) ? observer_->held(value) : at::Tensor(); }
void Tracer::give(ValueId value, const at::Tensor& result) {
  if (value.valid()) observer_->give(value, result);
}
void Tracer::leave(const Plan& plan, const std::string& why, bool records) { observer_->leave(&plan, why, records); }

void leave_trace(const std::string& why) {
  if (auto* observer = dynamic_cast<Tracer::Observer*>(current_observer())) observer->leave(nullptr, why, false);
}
bool is_tracing() {
  const auto* observer = dynamic_cast<Tracer::Observer*>(current_observer());
  return observer != nullptr && observer->is_compared();
}
bool show_memory(const at::Tensor& tensor, const void* values) {
  auto* observer = dynamic_cast<Tracer::Observer*>(current_observer());
  return observer == nullptr || observer->show(tensor, values);
}
void hide_memory(const at::Tensor& tensor) {
  if (auto* observer = dynamic_cast<Tracer::Observer*>(current_observer())) observer->hide(tensor);
}

}  // namespace stepc
