#include "engine/program/event_update.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"

namespace stepc {

namespace {

// The place of a tensor that is not the program's: beyond all of its tensors.
constexpr size_t kNowhere = SIZE_MAX;

std::vector<size_t> counters_of(const Trace& trace, const HostEvent& event, const std::vector<OwnedKey>& keys) {
  std::set<StorageId> written;
  for (CallId call : event.own_calls)
    for (ValueId value : trace.calls[call.index()].writes) written.insert(trace.values[value.index()].storage);
  std::vector<size_t> places;
  for (const External& external : trace.externals) {
    if (!written.contains(trace.values[external.value.index()].storage)) continue;
    if (external.owner == Owner::kBatch) {
      places.push_back(keys.size() + static_cast<size_t>(std::stoul(external.key)));
      continue;
    }
    const auto found = std::ranges::find(keys, OwnedKey{external.owner, external.key});
    places.push_back(found == keys.end() ? kNowhere : static_cast<size_t>(found - keys.begin()));
  }
  return places;
}

}  // namespace

void set_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!parameter.grad().is_same(gradient)) parameter.mutable_grad() = gradient;
}

EventUpdate::EventUpdate(const Trace& trace, size_t event, const std::vector<OwnedKey>& keys)
    : key_(trace.events[event].key),
      shadow_(trace, event),
      counters_(counters_of(trace, trace.events[event], keys)),
      known_(key_, counters_) {
  std::map<std::string_view, ValueId> found;
  for (const Rebinding& gradient : trace.events[event].gradients) found.emplace(gradient.key, gradient.value);
  for (size_t k = 0; k < keys.size(); ++k) {
    if (keys[k].owner != Owner::kParameter) continue;
    const auto gradient = found.find(keys[k].key);
    const bool has_one = gradient != found.end() && gradient->second.valid();
    gradients_.push_back({k, has_one ? stand_in(trace, trace.values[gradient->second.index()]) : at::Tensor()});
  }
}

std::string EventUpdate::run(Program& program, const std::vector<at::Tensor>& tensors, bool learns,
                             const std::function<void()>& before_host_code, const HandOn& hand_on) {
  if (learns && known_.replay(program, tensors, hand_on)) {
    ++known_updates_;
    return {};
  }
  before_host_code();
  const KnownUpdate::RunFn run_shadow = [&](const std::function<void()>& host_code, const SupplyFn& to) {
    return shadow(tensors, host_code, to);
  };
  const SupplyFn take = [&](CallId call, size_t arg, const c10::IValue& number) { hand_on({call, arg, number}, true); };
  if (!learns) known_.set_stale();
  std::string difference =
      learns ? known_.learn(program, tensors, run_shadow, take) : run_shadow([&] { program.run_event(key_); }, take);
  if (!difference.empty()) difference = str("{} changed: {}", key_, difference);
  return difference;
}

// Runs the event's host code without its kernels.
std::string EventUpdate::shadow(const std::vector<at::Tensor>& tensors, const std::function<void()>& host_code,
                                const SupplyFn& supply) {
  std::vector<at::Tensor> kept;
  for (const Gradient& gradient : gradients_) {
    kept.push_back(tensors[gradient.parameter].grad());
    set_gradient(tensors[gradient.parameter], gradient.stand_in);
  }
  const auto restore = [&] {
    for (size_t p = 0; p < gradients_.size(); ++p) set_gradient(tensors[gradients_[p].parameter], kept[p]);
  };
  std::string difference;
  try {
    difference = shadow_.run(host_code, supply);
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return difference;
}

}  // namespace stepc
