// Another trace, which began alike, goes on where this one does not.
#include <algorithm>

#include "capture/tracing/trace_observer.h"

namespace stepc {

bool Tracer::Observer::take_over(const Observer& from) {
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
  callbacks_ = from.callbacks_;
  computes_ = from.computes_;
  recording_ = from.recording_;
  next_ = calls;
  return true;
}

bool Tracer::Observer::begins_as(const Observer& from, size_t c, const std::map<size_t, c10::IValue>& given,
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

bool Tracer::Observer::comes_back_as(const Observer& from) {
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

bool Tracer::Observer::meets_as(const Observer& from, ValueId value) {
  const StorageId storage = storage_of(value);
  const MetStorage& theirs = from.met_[storage.index()];
  MetStorage& mine = met_[storage.index()];
  const bool is_given = trace_.storages[storage.index()].external;
  if (is_given != from.trace_.storages[storage.index()].external) return false;
  if (theirs.address == nullptr) return true;
  if (!is_given) {
    mine = theirs;
    return true;
  }
  if (mine.address != nullptr) return mine.address == theirs.address && mine.shift == theirs.shift;
  const auto kept = std::ranges::find(from.kept_, theirs.address, &c10::Storage::unsafeGetStorageImpl);
  if (kept == from.kept_.end() || is_unreadable(*theirs.address) || from.stale_.contains(theirs.address)) return false;
  return is_constant(storage, from.window_on(value, *kept)) && mine.shift == theirs.shift;
}

}  // namespace stepc
