#include "capture/random_states.h"

#include <algorithm>

#include "base/text.h"

namespace stepc {

RandomStates::RandomStates(const std::vector<std::pair<std::string, at::Generator>>& owned) {
  watch("default", at::detail::getDefaultCPUGenerator(), true);
  for (const auto& [key, generator] : owned) watch(key, generator, true);
}

void RandomStates::watch(std::string key, const at::Generator& generator, bool owned) {
  Watched& one = watched_.emplace_back();
  one.generator = generator;
  one.key = std::move(key);
  one.owned = owned;
  see(watched_.size() - 1, owned ? GeneratorState::Kind::kInitial : GeneratorState::Kind::kConstant, {});
}

void RandomStates::see(size_t watched, GeneratorState::Kind kind, CallId call) {
  Watched& one = watched_[watched];
  Seen& seen = one.seen.emplace_back();
  seen.snapshot = read_generator(one.generator);
  seen.state.generator = GeneratorId(watched);
  seen.state.kind = kind;
  seen.state.call = call;
  if (kind == GeneratorState::Kind::kConstant) seen.state.bytes = to_bytes(seen.snapshot);
  one.current = one.seen.size() - 1;
}

GeneratorArg RandomStates::argument(const at::Generator& generator) {
  for (size_t w = 0; w < watched_.size(); ++w)
    if (watched_[w].generator == generator) return {GeneratorId(w)};
  const GeneratorId id(watched_.size());
  watch(str("step {}", id), generator, false);
  return {id};
}

void RandomStates::before_call(CallId call) {
  for (size_t w = 0; w < watched_.size(); ++w) {
    Watched& one = watched_[w];
    if (is_in_state(one.generator, one.seen[one.current].snapshot)) continue;
    size_t found = one.seen.size();
    while (found > 0 && !is_in_state(one.generator, one.seen[found - 1].snapshot)) --found;
    if (found == 0)
      see(w, GeneratorState::Kind::kConstant, {});
    else
      one.current = found - 1;
    loads_.push_back({call, w, one.current});
  }
}

bool RandomStates::are_put_back() const {
  return std::ranges::any_of(
      watched_, [](const Watched& one) { return !is_in_state(one.generator, one.seen[one.current].snapshot); });
}

void RandomStates::resume() {
  for (size_t w = 0; w < watched_.size(); ++w) see(w, GeneratorState::Kind::kResumed, {});
}

// A part that is computed again in the backward pass leaves the state that the forward pass left, which is the state
// that the program came back with unless it drew in between. checkpoint() puts that one back, and a recording would not
// see it.
void RandomStates::after_call(CallId call) {
  for (size_t w = 0; w < watched_.size(); ++w) {
    Watched& one = watched_[w];
    if (is_in_state(one.generator, one.seen[one.current].snapshot)) continue;
    const auto resumed = std::ranges::find_if(one.seen, [&one](const Seen& seen) {
      return seen.state.kind == GeneratorState::Kind::kResumed && is_in_state(one.generator, seen.snapshot);
    });
    const auto place = static_cast<size_t>(resumed - one.seen.begin());
    const bool is_put_back = resumed != one.seen.end();
    see(w, GeneratorState::Kind::kAfterCall, call);
    if (!is_put_back) continue;
    one.current = place;
    loads_.push_back({CallId(call.index() + 1), w, place});
  }
}

void RandomStates::finish(CallId end, Trace& trace) {
  before_call(end);
  std::vector<std::vector<StateId>> ids(watched_.size());
  for (size_t w = 0; w < watched_.size(); ++w) {
    trace.generators.push_back(watched_[w].key);
    ids[w].resize(watched_[w].seen.size());
    // The step's own generator begins in its constant state, without the host putting it back.
    if (!watched_[w].owned) loads_.insert(loads_.begin(), {CallId(0), w, 0});
  }
  for (const Load& load : loads_) {
    StateId& id = ids[load.watched][load.seen];
    if (!id.valid()) {
      id = StateId(trace.states.size());
      trace.states.push_back(watched_[load.watched].seen[load.seen].state);
    }
    trace.loads.push_back({load.before, id});
  }
}

std::vector<at::Generator> RandomStates::unowned() const {
  std::vector<at::Generator> out;
  for (const Watched& one : watched_)
    if (!one.owned && one.generator.getIntrusivePtr().use_count() > 1) out.push_back(one.generator);
  return out;
}

}  // namespace stepc
