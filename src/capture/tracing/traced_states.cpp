#include "capture/tracing/traced_states.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <utility>

#include "aten/operators.h"
#include "ir/agree.h"

namespace stepc {

namespace {

// The smallest normal numbers, which survive being saved as a state and put back.
GeneratorSnapshot mark_of(GeneratorSnapshot state, size_t call) {
  state.next_double = std::bit_cast<double>((uint64_t{1} << 52) + call);
  return state;
}

// The generator that a call draws from, invalid where it draws nothing.
GeneratorId drawn_by(const Call& call) {
  for (const Arg& arg : call.args)
    if (const auto* generator = std::get_if<GeneratorArg>(&arg)) return generator->generator;
  return find_operator(call.op).hasTag(at::Tag::nondeterministic_seeded) ? GeneratorId(0) : GeneratorId();
}

// How many numbers such a call draws.
bool depends_on_data(std::string_view op) {
  return std::ranges::any_of(std::to_array<std::string_view>({"rrelu", "gamma", "dirichlet", "binomial", "poisson"}),
                             [&](std::string_view part) { return op.find(part) != std::string_view::npos; });
}

}  // namespace

TracedStates::TracedStates(const Trace& trace)
    : trace_(trace), draws_(trace.calls.size()), expected_(trace.calls.size()), alike_(trace.calls.size()) {
  for (size_t c = 0; c < trace.calls.size(); ++c)  // dropout() that gives back what it is given draws nothing
    draws_[c] = is_view(trace, trace.calls[c]) ? GeneratorId() : drawn_by(trace.calls[c]);
  for (const GeneratorState& state : trace.states)
    if (state.kind == GeneratorState::Kind::kAfterCall) draws_[state.call.index()] = state.generator;
  for (size_t g = 0; g < trace.generators.size(); ++g) at_end_.push_back({GeneratorId(g), {}, {}, {}});
  size_t next = 0;
  const auto load = [&](size_t before) {
    for (; next < trace.loads.size() && trace.loads[next].before.index() <= before; ++next) {
      const GeneratorState& state = trace.states[trace.loads[next].state.index()];
      at_end_[state.generator.index()] = state;
    }
  };
  for (const HostRead& read : trace.reads) at_reads_[read.call.index()];
  const std::optional<size_t> pause = find_pause(trace);
  const size_t pauses_before = pause ? trace.events[*pause].begin.index() : SIZE_MAX;
  const auto pass_pause = [&] {
    for (const GeneratorState& state : at_end_) at_pause_.push_back(first_alike(state));
    for (GeneratorState& state : at_end_) state = {state.generator, GeneratorState::Kind::kResumed, {}, {}};
  };
  for (size_t c = 0; c < trace.calls.size(); ++c) {
    if (c == pauses_before) pass_pause();
    load(c);
    if (const auto read = at_reads_.find(c); read != at_reads_.end())
      for (const GeneratorState& state : at_end_) read->second.push_back(first_alike(state));
    if (!draws_[c].valid()) continue;
    GeneratorState& state = at_end_[draws_[c].index()];
    expected_[c] = first_alike(std::exchange(state, {draws_[c], GeneratorState::Kind::kAfterCall, CallId(c), {}}));
    alike_[c] = c;
    for (size_t other = 0; other < c && alike_[c] == c; ++other)
      if (draws_[other].valid() && expected_[other] == expected_[c] && draw_alike(other, c)) alike_[c] = other;
  }
  if (pauses_before == trace.calls.size()) pass_pause();
  load(trace.calls.size());
  for (GeneratorState& state : at_end_) state = first_alike(std::move(state));
}

GeneratorState TracedStates::first_alike(GeneratorState state) const {
  if (state.kind == GeneratorState::Kind::kAfterCall) state.call = CallId(alike_[state.call.index()]);
  return state;
}

// A recomputed part draws what it drew before from the state that it finds again: then the state after it is found
// again, too, and a recording does not see whether the host puts it back.
bool TracedStates::draw_alike(size_t call, size_t other) const {
  const Call& a = trace_.calls[call];
  const Call& b = trace_.calls[other];
  if (a.op != b.op || a.args.size() != b.args.size() || depends_on_data(a.op)) return false;
  for (size_t i = 0; i < a.args.size(); ++i) {
    const auto* one = std::get_if<ValueId>(&a.args[i]);
    const auto* another = std::get_if<ValueId>(&b.args[i]);
    if (one == nullptr || another == nullptr || !one->valid() || !another->valid()) {
      if (a.args[i] != b.args[i]) return false;
      continue;
    }
    const Value& x = trace_.values[one->index()];
    const Value& y = trace_.values[another->index()];
    if (x.dtype != y.dtype || x.sizes != y.sizes || x.strides != y.strides) return false;
  }
  return true;
}

void TracedStates::bind(std::vector<at::Generator> generators) {
  watched_.assign(generators.size(), {});
  loads_.clear();
  for (size_t g = 0; g < generators.size(); ++g) {
    Watched& one = watched_[g];
    one.generator = g == 0 ? at::detail::getDefaultCPUGenerator() : std::move(generators[g]);
    if (one.generator.defined()) see(g, GeneratorState::Kind::kInitial, {}, read_generator(one.generator));
  }
}

void TracedStates::see(size_t watched, GeneratorState::Kind kind, CallId call, const GeneratorSnapshot& snapshot) {
  Watched& one = watched_[watched];
  Seen& seen = one.seen.emplace_back();
  seen.state = {GeneratorId(watched), kind, call, {}};
  if (kind == GeneratorState::Kind::kConstant) seen.state.bytes = to_bytes(snapshot);
  seen.snapshot = snapshot;
  one.current = one.seen.size() - 1;
}

const at::Generator& TracedStates::generator(GeneratorId id) const { return watched_.at(id.index()).generator; }

bool TracedStates::is_generator(const at::Generator& given, GeneratorId expected) {
  Watched& one = watched_.at(expected.index());
  if (!one.generator.defined() && is_cpu_generator(given)) {
    one.generator = given;
    see(expected.index(), GeneratorState::Kind::kConstant, {}, read_generator(given));
  }
  return one.generator.defined() && given.unsafeGetGeneratorImpl() == one.generator.unsafeGetGeneratorImpl();
}

void TracedStates::look(size_t watched, size_t before) {
  Watched& one = watched_[watched];
  if (!one.generator.defined() || is_in_state(one.generator, one.seen[one.current].snapshot)) return;
  size_t found = one.seen.size();
  while (found > 0 && !is_in_state(one.generator, one.seen[found - 1].snapshot)) --found;
  if (found == 0)
    see(watched, GeneratorState::Kind::kConstant, {}, read_generator(one.generator));
  else
    one.current = found - 1;
  loads_.push_back({before, watched, one.current});
}

bool TracedStates::is_recorded(size_t watched, const GeneratorState& expected, size_t call) {
  look(watched, call);
  const Watched& one = watched_[watched];
  return !one.generator.defined() || first_alike(one.seen[one.current].state) == expected;
}

bool TracedStates::are_all_recorded(const std::vector<GeneratorState>& expected, size_t call) {
  bool are = true;
  for (size_t g = 0; g < expected.size(); ++g) are = is_recorded(g, expected[g], call) && are;
  return are;
}

bool TracedStates::are_as_recorded(size_t call) {
  if (call == draws_.size()) return are_all_recorded(at_end_, call);
  if (const auto read = at_reads_.find(call); read != at_reads_.end() && !are_all_recorded(read->second, call))
    return false;
  return !draws_[call].valid() || is_recorded(draws_[call].index(), expected_[call], call);
}

bool TracedStates::are_as_recorded_at_pause(size_t call) { return are_all_recorded(at_pause_, call); }

void TracedStates::resume(size_t call) {
  for (size_t g = 0; g < watched_.size(); ++g) {
    if (!watched_[g].generator.defined()) continue;
    see(g, GeneratorState::Kind::kResumed, {}, read_generator(watched_[g].generator));
    loads_.push_back({call, g, watched_[g].current});
  }
}

bool TracedStates::is_seeded_as_recorded(size_t call) const {
  if (call == draws_.size() || !draws_[call].valid()) return true;
  const GeneratorState& expected = expected_[call];
  const at::Generator& generator = watched_[draws_[call].index()].generator;
  return expected.kind != GeneratorState::Kind::kConstant || !generator.defined() ||
         to_bytes(read_generator(generator)) == expected.bytes;
}

void TracedStates::skipped(size_t call) {
  if (!draws_[call].valid()) return;
  const size_t g = draws_[call].index();
  const at::Generator& generator = watched_[g].generator;
  const GeneratorSnapshot mark = mark_of(read_generator(generator), call);
  write_generator(generator, mark);
  see(g, GeneratorState::Kind::kAfterCall, CallId(call), mark);
}

void TracedStates::ran() {
  for (size_t g = 0; g < watched_.size(); ++g) {
    const Watched& one = watched_[g];
    if (!one.generator.defined() || is_in_state(one.generator, one.seen[one.current].snapshot)) continue;
    const GeneratorState now = one.seen[one.current].state;
    if (now.kind == GeneratorState::Kind::kAfterCall)
      see(g, now.kind, now.call, read_generator(one.generator));
    else
      write_generator(one.generator, one.seen[one.current].snapshot);
  }
}

void TracedStates::ran_instead() {
  for (const Watched& one : watched_)
    if (one.generator.defined()) write_generator(one.generator, one.seen[one.current].snapshot);
}

bool TracedStates::take_over(const TracedStates& from, size_t calls) {
  for (size_t c = 0; c < calls; ++c)
    if (draws_[c] != from.draws_[c] || (draws_[c].valid() && expected_[c] != from.expected_[c])) return false;
  for (const auto& [read, expected] : at_reads_)
    if (const auto theirs = from.at_reads_.find(read); read < calls && theirs != from.at_reads_.end())
      for (size_t g = 0; g < std::min(expected.size(), theirs->second.size()); ++g)
        if (expected[g] != theirs->second[g]) return false;
  const size_t generators = watched_.size();
  for (size_t g = generators; g < from.watched_.size(); ++g)
    if (from.watched_[g].generator.defined()) return false;
  watched_ = from.watched_;
  watched_.resize(generators);
  loads_ = from.loads_;
  return true;
}

void TracedStates::look(size_t before) {
  for (size_t g = 0; g < watched_.size(); ++g) look(g, before);
}

void TracedStates::before_computing(size_t call) {
  for (const Watched& one : watched_)  // those that the step makes begin as they were made
    if (call == 0 && !one.seen.empty() && one.seen.front().state.kind == GeneratorState::Kind::kConstant)
      write_generator(one.generator, one.seen.front().snapshot);
  for (const Load& load : loads_) {
    if (load.before != call) continue;
    const Seen& seen = watched_[load.watched].seen[load.seen];
    write_generator(watched_[load.watched].generator, seen.computed.value_or(seen.snapshot));
  }
}

void TracedStates::after_computing(size_t call) {
  if (!draws_[call].valid()) return;
  Watched& one = watched_[draws_[call].index()];
  for (Seen& seen : one.seen)
    if (seen.state.kind == GeneratorState::Kind::kAfterCall && seen.state.call == CallId(call))
      seen.computed = read_generator(one.generator);
}

void TracedStates::replace_marks() {
  for (const Watched& one : watched_)
    for (const Seen& seen : one.seen)
      if (seen.computed && is_in_state(one.generator, seen.snapshot)) {
        write_generator(one.generator, *seen.computed);
        break;
      }
}

}  // namespace stepc
