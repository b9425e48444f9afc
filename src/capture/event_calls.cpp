#include "capture/event_calls.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "ir/agree.h"

namespace stepc {

namespace {
constexpr int64_t kTinyElements = 64;

bool is_tiny(const Value& value) {
  int64_t elements = 1;
  for (int64_t size : value.sizes) elements *= size;
  return elements <= kTinyElements;
}

class EventCalls {
 public:
  EventCalls(const Trace& trace, const HostEvent& event) : trace_(trace), event_(event) {}

  // False: a read depends on more than tiny tensors.
  bool find() {
    std::set<CallId> reads;
    for (const HostRead& read : trace_.reads) reads.insert(read.call);
    for (size_t c = event_.end.index(); c-- > event_.begin.index();) {
      const Call& call = trace_.calls[c];
      if (is_view(trace_, call)) continue;
      bool tiny = true;
      for_each_value(call.args, [&](ValueId value) { tiny = tiny && is_tiny(trace_.values[value.index()]); });
      if (reads.count(CallId(c)) == 0 && !makes_needed(call) && !(tiny && keeps_host_data(call))) continue;
      if (!tiny) return false;
      for_each_value(call.args, [&](ValueId value) { needed_.insert(storage_of(value)); });
      own_.emplace_back(c);
    }
    std::reverse(own_.begin(), own_.end());
    return made_is_own();
  }

  std::vector<CallId> take() { return std::move(own_); }

 private:
  StorageId storage_of(ValueId value) const { return trace_.values[value.index()].storage; }

  bool makes_needed(const Call& call) const {
    bool makes = false;
    for (ValueId value : call.writes) makes = makes || needed_.count(storage_of(value)) != 0;
    for_each_value(call.results, [&](ValueId value) { makes = makes || needed_.count(storage_of(value)) != 0; });
    return makes;
  }

  // Whether it writes data of the host's into what outlives the step: what the host computed is another number next
  // time.
  bool keeps_host_data(const Call& call) const {
    const auto is_of = [&](ValueId value, bool constant) {
      return std::ranges::any_of(trace_.externals, [&](const External& external) {
        return (external.owner == Owner::kConstant) == constant && storage_of(external.value) == storage_of(value);
      });
    };
    bool reads_constant = false;
    for_each_value(call.args, [&](ValueId value) { reads_constant = reads_constant || is_of(value, true); });
    return reads_constant && !call.writes.empty() &&
           std::ranges::all_of(call.writes, [&](ValueId value) { return is_of(value, false); });
  }

  // What the own calls make must not be read by the calls that are replayed, nor may those have read a counter before
  // it is changed: the shadow run changes it first.
  bool made_is_own() const {
    const std::set<CallId> own(own_.begin(), own_.end());
    std::set<StorageId> made;
    std::set<StorageId> written_later;
    for (CallId call : own_) {
      for_each_value(trace_.calls[call.index()].results, [&](ValueId value) {
        if (!trace_.storages[storage_of(value).index()].external) made.insert(storage_of(value));
      });
      for (ValueId value : trace_.calls[call.index()].writes) written_later.insert(storage_of(value));
    }
    std::set<StorageId> written;
    for (size_t c = event_.begin.index(); c < trace_.calls.size(); ++c) {
      const Call& call = trace_.calls[c];
      if (own.count(CallId(c)) != 0) {
        for (ValueId value : call.writes) written.insert(storage_of(value));
        continue;
      }
      if (is_view(trace_, call)) continue;
      bool fits = true;
      for_each_value(call.args, [&](ValueId value) {
        const StorageId storage = storage_of(value);
        if (made.count(storage) != 0) fits = false;
        if (written_later.count(storage) != 0 && written.count(storage) == 0) fits = false;
      });
      if (!fits) return false;
    }
    return true;
  }

  const Trace& trace_;
  const HostEvent& event_;
  std::set<StorageId> needed_;
  std::vector<CallId> own_;
};

// Whether something that the event's calls made is used after it.
bool leaves_event(const Trace& trace, const HostEvent& event) {
  std::set<StorageId> made;
  for (size_t c = event.begin.index(); c < event.end.index(); ++c)
    for_each_value(trace.calls[c].results, [&](ValueId value) {
      const StorageId storage = trace.values[value.index()].storage;
      if (!trace.storages[storage.index()].external) made.insert(storage);
    });
  for (size_t c = 0; c < event.begin.index(); ++c)
    for_each_value(trace.calls[c].results, [&](ValueId value) { made.erase(trace.values[value.index()].storage); });
  bool leaves = false;
  const auto check = [&](ValueId value) {
    leaves = leaves || (value.valid() && made.count(trace.values[value.index()].storage) != 0);
  };
  for (size_t c = event.end.index(); c < trace.calls.size(); ++c) for_each_value(trace.calls[c].args, check);
  for (ValueId value : trace.outputs) check(value);
  for (const Rebinding& rebinding : trace.rebindings) check(rebinding.value);
  return leaves;
}
}  // namespace

std::string classify_event(Trace& trace, HostEvent& event, bool may_run_eagerly) {
  EventCalls calls(trace, event);
  if (calls.find()) {
    event.kind = HostEvent::Kind::kShadow;
    event.own_calls = calls.take();
    return {};
  }
  event.kind = HostEvent::Kind::kEager;
  if (!may_run_eagerly || leaves_event(trace, event))
    return str("'{}' computes on the host with values that depend on data, and cannot run on its own", event.key);
  for (const Rebinding& gradient : event.gradients) {
    if (!gradient.value.valid()) continue;  // not touched by the step: it stays as the program has it
    Storage& storage = trace.storages[trace.values[gradient.value.index()].storage.index()];
    if (!storage.external) storage.escapes = true;
  }
  return {};
}

}  // namespace stepc
