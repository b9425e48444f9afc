#include "ir/trace.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/check.h"
#include "ir/text/arg_text.h"

namespace stepc {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

std::string_view name_of(Owner owner) {
  switch (owner) {
    case Owner::kParameter:
      return "parameter";
    case Owner::kGradient:
      return "gradient";
    case Owner::kBuffer:
      return "buffer";
    case Owner::kOptimizerState:
      return "optimizer_state";
    case Owner::kBatch:
      return "batch";
    case Owner::kCaptured:
      return "captured";
    case Owner::kConstant:
      return "constant";
    case Owner::kHost:
      return "host";
    case Owner::kIncoming:
      return "incoming";
  }
  return "?";
}

int64_t extent_of(const Value& value) {
  int64_t last = value.offset;
  for (size_t d = 0; d < value.sizes.size(); ++d) {
    if (value.sizes[d] == 0) return value.offset;
    last += (value.sizes[d] - 1) * value.strides[d];
  }
  return last + 1;
}

bool is_contiguous(const Value& value) {
  int64_t expected = 1;
  for (size_t d = value.sizes.size(); d-- > 0;) {
    if (value.strides[d] != expected) return false;
    expected *= value.sizes[d];
  }
  return true;
}

bool is_behind_guard(const Trace& trace, const HostEvent& event) {
  return std::ranges::any_of(trace.reads, [&](const HostRead& read) { return read.guard && read.call < event.begin; });
}

bool is_view(const Trace& trace, const Call& call) {
  if (!call.writes.empty()) return false;
  std::set<StorageId> read;
  for_each_value(call.args, [&](ValueId value) { read.insert(trace.values[value.index()].storage); });
  bool any = false;
  bool all = true;
  for_each_value(call.results, [&](ValueId value) {
    any = true;
    all = all && read.count(trace.values[value.index()].storage) != 0;
  });
  return any && all;
}

namespace {
std::string describe(const Trace& trace, ValueId id) {
  const Value& value = trace.values[id.index()];
  return str("{}[{}]", name_of(value.dtype), fmt::join(value.sizes, ", "));
}

void verify_values(const Trace& trace) {
  for (size_t i = 0; i < trace.values.size(); ++i) {
    const Value& value = trace.values[i];
    INTERNAL_CHECK_LT(value.storage.index(), trace.storages.size(), "value %{}", i);
    INTERNAL_CHECK_EQ(value.sizes.size(), value.strides.size(), "value %{}", i);
    INTERNAL_CHECK(value.offset >= 0, "value %{} begins at {}", i, value.offset);
    for (int64_t size : value.sizes) INTERNAL_CHECK(size >= 0, "value %{}", i);
    const auto bytes = static_cast<uint64_t>(extent_of(value) * size_of(value.dtype));
    bool empty = false;
    for (int64_t size : value.sizes) empty = empty || size == 0;
    if (!empty)
      INTERNAL_CHECK_LE(bytes, trace.storages[value.storage.index()].bytes, "value %{} leaves its storage", i);
  }
}

void verify_calls(const Trace& trace) {
  std::vector<bool> known(trace.storages.size(), false);
  for (size_t s = 0; s < trace.storages.size(); ++s) known[s] = trace.storages[s].external;
  for (size_t c = 0; c < trace.calls.size(); ++c) {
    const Call& call = trace.calls[c];
    INTERNAL_CHECK(call.op.find("::") != std::string::npos, "call {} has the op name '{}'", c, call.op);
    for_each_value(call.args, [&](ValueId value) {
      INTERNAL_CHECK_LT(value.index(), trace.values.size(), "call {} {}", c, call.op);
      INTERNAL_CHECK(known[trace.values[value.index()].storage.index()], "call {} {} reads %{} before it is made", c,
                     call.op, value);
    });
    for (ValueId value : call.writes) INTERNAL_CHECK_LT(value.index(), trace.values.size(), "call {} {}", c, call.op);
    for_each_value(call.results, [&](ValueId value) {
      INTERNAL_CHECK_LT(value.index(), trace.values.size(), "call {} {}", c, call.op);
      known[trace.values[value.index()].storage.index()] = true;
    });
  }
  for (ValueId value : trace.outputs)
    if (value.valid()) INTERNAL_CHECK_LT(value.index(), trace.values.size(), "output");
  for (const Rebinding& rebinding : trace.rebindings)
    if (rebinding.value.valid())
      INTERNAL_CHECK_LT(rebinding.value.index(), trace.values.size(), "{} '{}'", name_of(rebinding.owner),
                        rebinding.key);
}

// Host reads, generator states and events name calls that are there, in order.
void verify_host_side(const Trace& trace) {
  CallId previous;
  for (const HostRead& read : trace.reads) {
    INTERNAL_CHECK_LT(read.call.index(), trace.calls.size(), "a host read");
    INTERNAL_CHECK(!previous.valid() || previous < read.call, "host reads are not in the order of their calls");
    previous = read.call;
  }
  for (const GeneratorState& state : trace.states) {
    INTERNAL_CHECK_LT(state.generator.index(), trace.generators.size(), "a generator's state");
    if (state.kind == GeneratorState::Kind::kAfterCall)
      INTERNAL_CHECK_LT(state.call.index(), trace.calls.size(), "a generator's state");
  }
  for (const GeneratorLoad& load : trace.loads) {
    INTERNAL_CHECK_LT(load.state.index(), trace.states.size(), "a generator's load");
    INTERNAL_CHECK_LE(load.before.index(), trace.calls.size(), "a generator's load");
  }
  CallId end(0);
  for (const HostEvent& event : trace.events) {
    INTERNAL_CHECK(end <= event.begin && event.begin <= event.end && event.end.index() <= trace.calls.size(),
                   "event '{}' makes calls [{}, {}) of {}", event.key, event.begin, event.end, trace.calls.size());
    end = event.end;
    for (CallId call : event.own_calls)
      INTERNAL_CHECK(event.begin <= call && call < event.end, "event '{}' runs call {}", event.key, call);
  }
  const auto check_arg = [&](const Arg& arg) {
    if (const auto* number = std::get_if<ReadNumber>(&arg))
      INTERNAL_CHECK_LT(number->read.index(), trace.calls.size(), "a number that was read");
    if (const auto* generator = std::get_if<GeneratorArg>(&arg))
      INTERNAL_CHECK_LT(generator->generator.index(), trace.generators.size(), "a generator");
  };
  for (const Call& call : trace.calls)
    for (const Arg& arg : call.args) check_arg(arg);
  for (const Arg& number : trace.numbers) check_arg(number);
}

void verify_memory(const Trace& trace) {
  CallId previous(0);
  std::set<StorageId> allocated;
  for (const Storage& storage : trace.storages)
    INTERNAL_CHECK(storage.space == Space::kHost || !trace.device.empty(), "memory of a device, and there is none");
  for (const Allocation& allocation : trace.allocations) {
    INTERNAL_CHECK_LT(allocation.call.index(), trace.calls.size());
    INTERNAL_CHECK(previous <= allocation.call, "allocations are not in the order of their calls");
    previous = allocation.call;
    INTERNAL_CHECK(0 <= allocation.first && allocation.first < allocation.last && allocation.last <= trace.ticks,
                   "allocation of call {} lives in [{}, {}) of {} ticks", allocation.call, allocation.first,
                   allocation.last, trace.ticks);
    if (!allocation.storage.valid()) continue;
    INTERNAL_CHECK_LT(allocation.storage.index(), trace.storages.size());
    INTERNAL_CHECK(!trace.storages[allocation.storage.index()].external, "storage s{} is external and allocated",
                   allocation.storage);
    INTERNAL_CHECK(trace.storages[allocation.storage.index()].space == allocation.space,
                   "storage s{} is allocated in the other memory", allocation.storage);
    INTERNAL_CHECK(allocated.insert(allocation.storage).second, "storage s{} is allocated twice", allocation.storage);
  }
  for (const WorkerScratch& scratch : trace.scratch) INTERNAL_CHECK_LT(scratch.call.index(), trace.calls.size());
}
}  // namespace

void verify(const Trace& trace) {
  verify_values(trace);
  std::set<std::pair<Owner, std::string>> keys;
  for (const External& external : trace.externals) {
    INTERNAL_CHECK_LT(external.value.index(), trace.values.size(), "external {}", external.key);
    const StorageId storage = trace.values[external.value.index()].storage;
    INTERNAL_CHECK(trace.storages[storage.index()].external, "{} '{}' lies in a storage that the step makes",
                   name_of(external.owner), external.key);
    INTERNAL_CHECK(keys.insert({external.owner, external.key}).second, "{} '{}' appears twice", name_of(external.owner),
                   external.key);
  }
  for (const Constant& constant : trace.constants)
    INTERNAL_CHECK(keys.count({Owner::kConstant, constant.key}) + keys.count({Owner::kHost, constant.key}) != 0,
                   "constant '{}' is no external", constant.key);
  verify_calls(trace);
  verify_host_side(trace);
  verify_memory(trace);
}

namespace {
std::vector<Allocation> allocations_of_tensors(const Trace& trace) {
  std::vector<Allocation> out;
  std::ranges::copy_if(trace.allocations, std::back_inserter(out),
                       [](const Allocation& one) { return one.storage.valid(); });
  return out;
}

std::string in_words(const Trace& trace, const Arg& arg) {
  if (const auto* wrapped = std::get_if<WrappedNumber>(&arg))
    return std::visit([&](const auto& number) { return in_words(trace, Arg(number)); }, wrapped->number);
  return arg_text(arg, [&](ValueId id) { return describe(trace, id); });
}
std::string in_words(const External& external) { return str("{} '{}'", name_of(external.owner), external.key); }

std::string was_and_is(const std::string& was, const std::string& is) {
  return was == is ? "another " + is : str("{} and then {}", was, is);
}
}  // namespace

std::string first_difference(const Trace& a, const Trace& b) {
  const size_t calls = std::min(a.calls.size(), b.calls.size());
  for (size_t c = 0; c < calls; ++c) {
    const Call& x = a.calls[c];
    const Call& y = b.calls[c];
    if (x.op != y.op) return str("call {} was {} and then {} (in {})", c, x.op, y.op, y.module);
    if (x == y) continue;
    for (size_t i = 0; i < std::min(x.args.size(), y.args.size()); ++i)
      if (x.args[i] != y.args[i])
        return str("call {} {} (in '{}') got {} as argument {}", c, x.op, y.module,
                   was_and_is(in_words(a, x.args[i]), in_words(b, y.args[i])), i);
    return str("call {} {} (in '{}') differs from the call before", c, x.op, y.module);
  }
  if (a.calls.size() != b.calls.size()) return str("{} calls and then {}", a.calls.size(), b.calls.size());
  for (size_t v = 0; v < std::min(a.values.size(), b.values.size()); ++v)
    if (!(a.values[v] == b.values[v]))
      return str("a tensor was {} and then {}, or laid out differently", describe(a, ValueId(v)),
                 describe(b, ValueId(v)));
  for (size_t e = 0; e < std::min(a.externals.size(), b.externals.size()); ++e)
    if (!(a.externals[e] == b.externals[e]))
      return str("the step used other parameters, state or batch tensors than before: {}",
                 was_and_is(in_words(a.externals[e]), in_words(b.externals[e])));
  if (a.externals.size() != b.externals.size())
    return str("the step used {} parameters, state and batch tensors and then {}", a.externals.size(),
               b.externals.size());
  if (a.device != b.device) return "the step used another device than before";
  if (!(a.storages == b.storages)) return "the step kept other tensors than before";
  if (!(a.outputs == b.outputs) || !(a.rebindings == b.rebindings)) return "the step returned or left other tensors";
  if (!(a.numbers == b.numbers)) return "the step returned other numbers";
  if (!(a.constants == b.constants)) return "a tensor made from host data inside the step had other values than before";
  const auto is_same_read = [](const HostRead& x, const HostRead& y) {  // whatever line called the step
    return x.call == y.call && x.guard == y.guard && x.decides == y.decides;
  };
  if (!std::ranges::equal(a.reads, b.reads, is_same_read)) return "the step read other values on the host";
  if (!(a.generators == b.generators) || !(a.states == b.states) || !(a.loads == b.loads))
    return "random generators were given other states inside the step";
  if (!(a.events == b.events)) return "the optimizers' updates differ";
  // What a kernel takes for itself may follow from data.
  const std::vector<Allocation> before = allocations_of_tensors(a);
  const std::vector<Allocation> now = allocations_of_tensors(b);
  if (before.size() != now.size()) return str("{} allocations and then {}", before.size(), now.size());
  for (size_t i = 0; i < before.size(); ++i) {
    const Allocation& x = before[i];
    const Allocation& y = now[i];
    if (x.call != y.call || x.bytes != y.bytes || x.storage != y.storage || x.kept != y.kept)
      return str("allocation {} was {} B in call {} and then {} B in call {}", i, x.bytes, x.call, y.bytes, y.call);
  }
  return {};
}

}  // namespace stepc
