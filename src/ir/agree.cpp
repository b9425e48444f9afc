#include "ir/agree.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "ir/attrs.h"
#include "ir/moving_windows.h"

namespace stepc {

namespace {

// A scalar argument in the one form that all numbers are compared in.
struct Number {
  ReadNumber::Kind kind = ReadNumber::Kind::kDouble;
  bool wrapped = false;
  int64_t integer = 0;
  double real = 0;
};

Number number_of(bool value) { return {ReadNumber::Kind::kBool, false, value ? 1 : 0, value ? 1.0 : 0.0}; }
Number number_of(int64_t value) { return {ReadNumber::Kind::kInt, false, value, static_cast<double>(value)}; }
Number number_of(double value) { return {ReadNumber::Kind::kDouble, false, 0, value}; }

std::optional<Number> number_of(const Arg& arg) {
  if (const auto* value = std::get_if<bool>(&arg)) return number_of(*value);
  if (const auto* value = std::get_if<int64_t>(&arg)) return number_of(*value);
  if (const auto* value = std::get_if<double>(&arg)) return number_of(*value);
  const auto* wrapped = std::get_if<WrappedNumber>(&arg);
  if (wrapped == nullptr || std::holds_alternative<std::complex<double>>(wrapped->number)) return std::nullopt;
  Number number = std::visit(
      [](const auto& value) -> Number {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::complex<double>>)
          return {};
        else
          return number_of(value);
      },
      wrapped->number);
  number.wrapped = true;
  return number;
}

// Whether passing on `read` gives `passed`: the same value, an integer perhaps as a float.
bool passes_on(const Number& read, const Number& passed) {
  if (passed.kind == ReadNumber::Kind::kDouble || read.kind == ReadNumber::Kind::kDouble)
    return same_bits(read.real, passed.real);
  return read.integer == passed.integer;
}

bool may_be_supplied(const Arg& a, const Arg& b) {
  if (a.index() != b.index()) return false;
  if (number_of(a).has_value()) return true;
  if (const auto* reals = std::get_if<std::vector<double>>(&a))
    return reals->size() == std::get<std::vector<double>>(b).size();
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&a))
    return integers->size() == std::get<std::vector<int64_t>>(b).size();
  return false;
}

// " (in 'model.layers.0' at model.py:12)"
std::string place(const Call& call, const HostRead& read) {
  std::string where = call.module.empty() ? std::string() : str("in '{}'", call.module);
  if (!read.source.empty()) where += str("{}at {}", where.empty() ? "" : " ", read.source);
  return where.empty() ? where : str(" ({})", where);
}

// One read, in both recordings.
struct ReadPair {
  size_t index = 0;  // among the reads
  CallId call;
  Number before;
  Number now;
  bool used = false;
  bool same() const { return before.kind == now.kind && passes_on(before, now); }
};

class Agree {
 public:
  Agree(const Trace& before, const Trace& now) : before_(before), now_(now) {}

  Agreement run() {
    Agreement agreement;
    pair_calls();
    if (!unexplained_.empty()) {
      agreement.obstacle = unexplained_;
      return agreement;
    }
    pair_numbers();
    agreement.difference = first_difference(before_, now_);
    is_other_path_ = !agreement.difference.empty();
    if (agreement.difference.empty()) classify(agreement);
    agreement.trace = std::move(now_);
    return agreement;
  }
  [[nodiscard]] bool is_other_path() const { return is_other_path_; }

 private:
  const HostEvent* event_of(size_t call) {
    while (event_ < now_.events.size() && now_.events[event_].end.index() <= call) ++event_;
    if (event_ == now_.events.size() || call < now_.events[event_].begin.index()) return nullptr;
    return &now_.events[event_];
  }

  // The latest read that explains both numbers.
  bool bind(Arg& a, Arg& b) {
    const auto before = number_of(a);
    const auto now = number_of(b);
    if (!before || !now || before->kind != now->kind || before->wrapped != now->wrapped) return false;
    bool bound = false;
    for (size_t r = reads_.size(); r-- > 0;) {
      ReadPair& read = reads_[r];
      if (!passes_on(read.before, *before) || !passes_on(read.now, *now)) continue;
      read.used = true;  // an earlier read of the same number is as good
      if (!bound) a = b = ReadNumber{read.call, now->kind, now->wrapped};
      bound = true;
    }
    return bound;
  }

  void pair_calls() {
    const size_t calls = std::min(before_.calls.size(), now_.calls.size());
    size_t read = 0;
    for (size_t c = 0; c < calls; ++c) {
      Call& x = before_.calls[c];
      Call& y = now_.calls[c];
      if (x.op != y.op || x.args.size() != y.args.size()) return;
      const HostEvent* event = event_of(c);
      for (size_t i = 0; i < x.args.size(); ++i) {
        if (x.args[i] == y.args[i]) continue;
        if (event != nullptr && may_be_supplied(x.args[i], y.args[i]))
          x.args[i] = y.args[i];
        else
          bind(x.args[i], y.args[i]);
      }
      if (read == now_.reads.size() || now_.reads[read].call.index() != c) continue;
      if (const std::string why = shape_difference(x, y, now_.reads[read]); !why.empty()) {
        unexplained_ = why;
        return;
      }
      const auto was = x.results.empty() ? std::nullopt : number_of(x.results.front());
      const auto is = y.results.empty() ? std::nullopt : number_of(y.results.front());
      if (event == nullptr && was && is) reads_.push_back({read, CallId(c), *was, *is, false});
      x.results = y.results;
      ++read;
    }
  }

  // Two results of a call whose shape depends on data.
  std::string shape_difference(const Call& x, const Call& y, const HostRead& read) const {
    const auto* was = x.results.empty() ? nullptr : std::get_if<ValueId>(&x.results.front());
    const auto* is = y.results.empty() ? nullptr : std::get_if<ValueId>(&y.results.front());
    if (was == nullptr || is == nullptr || !was->valid() || !is->valid()) return {};
    if (before_.values[was->index()].sizes == now_.values[is->index()].sizes) return {};
    return str("{}{} makes a tensor whose shape depends on data", y.op, place(y, read));
  }

  void pair_numbers() {
    if (before_.numbers.size() != now_.numbers.size()) return;
    for (size_t i = 0; i < now_.numbers.size(); ++i) {
      if (before_.numbers[i] == now_.numbers[i]) continue;
      if (!bind(before_.numbers[i], now_.numbers[i]) && unexplained_.empty())
        unexplained_ = "the step returns a number that changes and that no operator of it made";
      before_.numbers[i] = now_.numbers[i];
    }
  }

  bool only_passed_on(const ReadPair& read) const { return read.used && !now_.reads[read.index].decides; }

  void classify(Agreement& agreement) {
    agreement.obstacle = unexplained_;
    for (const ReadPair& read : reads_) {
      const Call& call = now_.calls[read.call.index()];
      if (read.same()) {
        now_.reads[read.index].guard = true;
      } else if (!only_passed_on(read) && read.now.kind != ReadNumber::Kind::kDouble) {
        agreement.difference = str("{}{} read another value on the host", call.op, place(call, now_.reads[read.index]));
        return;
      } else if (!only_passed_on(read) && agreement.obstacle.empty()) {
        agreement.obstacle =
            str("{}{} (.item(), float()) reads a float that changes from step to step on the host, and {}", call.op,
                place(call, now_.reads[read.index]),
                read.used ? "the step compares it: it would take another branch unseen"
                          : "the step neither returns it nor passes it to an operator: what it decides cannot be seen");
      }
    }
  }

  Trace before_;
  Trace now_;
  std::vector<ReadPair> reads_;
  size_t event_ = 0;
  bool is_other_path_ = false;
  std::string unexplained_;
};

bool is_real(const Arg& arg) {
  const auto* wrapped = std::get_if<WrappedNumber>(&arg);
  return std::holds_alternative<double>(arg) || std::holds_alternative<std::vector<double>>(arg) ||
         (wrapped != nullptr && std::holds_alternative<double>(wrapped->number));
}

// A read that is more than one number: the host makes the call itself.
bool is_hosts_call(const Call& call) { return call.op != "aten::_local_scalar_dense"; }

bool is_of_one_call(const HostEvent& event) { return event.kind == HostEvent::Kind::kShadow && event.key.empty(); }

class AgreeOnCalls {
 public:
  AgreeOnCalls(const Trace& before, const Trace& now) : before_(before), now_(now) {}

  Agreement run() {
    Agreement agreement;
    drop_supplied();
    inside_ = calls_in_events(now_);
    moving_ = find_moving_windows(before_, now_);
    give_to_host(before_, calls_in_events(before_));
    give_to_host(now_, inside_);
    pair_calls();
    pair_constants();
    before_.numbers = now_.numbers = {};  // the program returns its own
    if (shape_.empty()) agreement.difference = first_difference(before_, now_);
    if (agreement.difference.empty()) agreement.obstacle = shape_.empty() ? obstacle() : shape_;
    if (agreement.difference.empty() && agreement.obstacle.empty()) {
      add_events();
      agreement.obstacle = changed_data();
    }
    agreement.trace = std::move(now_);
    return agreement;
  }

 private:
  // By call: whether some event makes it.
  static std::vector<bool> calls_in_events(const Trace& trace) {
    std::vector<bool> inside(trace.calls.size(), false);
    for (const HostEvent& event : trace.events)
      for (size_t c = event.begin.index(); c < event.end.index(); ++c) inside[c] = true;
    return inside;
  }

  // What calls make that the host makes itself is the host's.
  static void give_to_host(Trace& trace, const std::vector<bool>& inside) {
    for (const HostRead& read : trace.reads) {
      const Call& call = trace.calls[read.call.index()];
      if (inside[read.call.index()] || !is_hosts_call(call) || is_view(trace, call)) continue;
      for_each_value(call.results, [&](ValueId value) {
        Storage& storage = trace.storages[trace.values[value.index()].storage.index()];
        if (storage.external) return;
        storage.external = true;
        storage.escapes = false;
        trace.externals.push_back({Owner::kHost, str("{} {}", read.call, value), value});
      });
    }
    const auto is_external = [&](const Allocation& one) {
      return one.storage.valid() && trace.storages[one.storage.index()].external;
    };
    std::erase_if(trace.allocations, is_external);
  }

  // Events that an earlier agreement added.
  void drop_supplied() {
    for (const HostEvent& event : before_.events)
      if (is_of_one_call(event)) supplied_.insert(event.begin);
    std::erase_if(before_.events,
                  [](const HostEvent& event) { return is_of_one_call(event) || event.kind == HostEvent::Kind::kRead; });
    // Host code that computes with what it reads is code like any other.
    for (Trace* trace : {&before_, &now_})
      std::erase_if(trace->events, [](const HostEvent& event) { return event.kind == HostEvent::Kind::kEager; });
  }

  void pair_calls() {
    const size_t calls = std::min(before_.calls.size(), now_.calls.size());
    std::vector<bool> hosts(calls, false);
    for (const HostRead& read : now_.reads)
      if (read.call.index() < calls) hosts[read.call.index()] = is_hosts_call(now_.calls[read.call.index()]);
    bool is_same = true;  // up to here
    for (size_t c = 0; c < calls; ++c) {
      Call& x = before_.calls[c];
      Call& y = now_.calls[c];
      if (x.op != y.op || x.args.size() != y.args.size()) return;
      // Where a step is recorded that had begun to follow a plan, nobody names its modules.
      if (y.module.empty()) y.module = x.module;
      x.module = y.module;
      if (moving_[c] && !inside_[c]) supplied_.insert(CallId(c));
      if (hosts[c] && is_same && !have_same_shapes(x, y)) shape_ = shape_of(CallId(c));
      for (size_t i = 0; i < x.args.size(); ++i) {
        if (x.args[i] == y.args[i]) continue;
        is_same = is_same && may_be_supplied(x.args[i], y.args[i]);
        if (!may_be_supplied(x.args[i], y.args[i])) continue;
        if (hosts[c]) {  // it is given them
          x.args[i] = y.args[i];
          continue;
        }
        if (!inside_[c] && !moving_[c] && !is_real(y.args[i]) && !is_integer_among_reals(y, y.args[i])) continue;
        if (!inside_[c]) supplied_.insert(CallId(c));
        x.args[i] = y.args[i];
      }
    }
    for (Trace* trace : {&before_, &now_})
      for (HostRead& read : trace->reads) read.guard = read.decides = false;
    for (const HostRead& read : now_.reads) {
      if (read.call.index() >= calls) break;
      std::vector<Arg>& was = before_.calls[read.call.index()].results;
      const std::vector<Arg>& is = now_.calls[read.call.index()].results;
      for (size_t r = 0; r < std::min(was.size(), is.size()); ++r)
        if (number_of(was[r]) && number_of(is[r])) was[r] = is[r];
    }
  }

  bool have_same_shapes(const Call& x, const Call& y) const {
    std::vector<std::vector<int64_t>> was, is;
    for_each_value(x.results, [&](ValueId id) { was.push_back(before_.values[id.index()].sizes); });
    for_each_value(y.results, [&](ValueId id) { is.push_back(now_.values[id.index()].sizes); });
    return was == is;
  }
  std::string shape_of(CallId call) const {
    const auto read = std::ranges::find(now_.reads, call, &HostRead::call);
    const Call& one = now_.calls[call.index()];
    return str("{}{} makes a tensor whose shape depends on data", one.op, place(one, *read));
  }

  // Both traces name constants in the order in which the step makes them.
  void pair_constants() {
    if (before_.externals.size() != now_.externals.size()) return;
    for (size_t e = 0; e < now_.externals.size(); ++e) {
      External& x = before_.externals[e];
      External& y = now_.externals[e];
      if (y.owner != Owner::kConstant || x.key != y.key || x.value != y.value) continue;
      const auto was = std::ranges::find(before_.constants, x.key, &Constant::key);
      const auto is = std::ranges::find(now_.constants, y.key, &Constant::key);
      if (was == before_.constants.end() || is == now_.constants.end() || was->bytes.size() != is->bytes.size())
        continue;
      const bool is_known = is->bytes.size() == now_.storages[now_.values[y.value.index()].storage.index()].bytes;
      if (x.owner == Owner::kConstant && is_known && was->bytes == is->bytes) continue;
      x.owner = y.owner = Owner::kHost;
      was->bytes = is->bytes;
    }
  }

  // An integer that takes part as the reals around it do; another one may be another shape.
  bool is_integer_among_reals(const Call& call, const Arg& arg) const {
    const auto* wrapped = std::get_if<WrappedNumber>(&arg);
    if (wrapped == nullptr || !std::holds_alternative<int64_t>(wrapped->number)) return false;
    bool among_reals = false;
    for_each_value(call.args,
                   [&](ValueId id) { among_reals = among_reals || is_floating(now_.values[id.index()].dtype); });
    return among_reals;
  }

  std::string obstacle() const {
    for (const HostEvent& event : now_.events)
      if (event.kind != HostEvent::Kind::kShadow && event.kind != HostEvent::Kind::kPause)
        return str("'{}' computes on the host with values that depend on data", event.key);
    for (const HostRead& read : now_.reads) {
      const Call& call = now_.calls[read.call.index()];
      if (inside_[read.call.index()] || !is_hosts_call(call)) continue;
      if (!call.writes.empty() || makes_windows(call))
        return str("{}{} gives back or changes what it is given, and is not known", call.op, place(call, read));
    }
    return {};
  }

  // Of what it is given.
  bool makes_windows(const Call& call) const {
    std::set<StorageId> given;
    for_each_value(call.args, [&](ValueId id) { given.insert(now_.values[id.index()].storage); });
    bool makes = false;
    for_each_value(call.results, [&](ValueId id) { makes = makes || given.contains(now_.values[id.index()].storage); });
    return makes;
  }

  // Data of the host's that comes after the step has begun is a copy.
  std::string changed_data() const {
    const std::vector<std::optional<size_t>> events = events_of_host_data(now_);
    std::set<StorageId> copies;
    for (size_t e = 0; e < events.size(); ++e)
      if (events[e]) copies.insert(now_.values[now_.externals[e].value.index()].storage);
    for (const Call& call : now_.calls)
      for (ValueId id : call.writes)
        if (copies.contains(now_.values[id.index()].storage))
          return str("{} changes data that the host makes after it has read something of the step", call.op);
    return {};
  }

  void add_events() {
    for (CallId call : supplied_) {
      HostEvent event;
      event.begin = call;
      event.end = CallId(call.index() + 1);
      if (moving_[call.index()]) event.own_calls = {call};
      now_.events.push_back(std::move(event));
    }
    for (const HostRead& read : now_.reads) {
      if (inside_[read.call.index()]) continue;
      const Call& call = now_.calls[read.call.index()];
      HostEvent event;
      event.kind = HostEvent::Kind::kRead;
      event.key = read.source;
      event.begin = event.end = CallId(read.call.index() + 1);
      if (is_hosts_call(call)) {
        event.begin = read.call;
        event.own_calls = {read.call};
      }
      for_each_value(call.args, [&](ValueId id) { event.outputs.push_back(id); });
      now_.events.push_back(std::move(event));
    }
    // A number that the last call before a pause reads is read before the pause.
    const auto place = [](const HostEvent& event) {
      return std::tuple(event.begin, event.end, event.kind == HostEvent::Kind::kPause);
    };
    std::ranges::sort(now_.events, {}, place);
  }

  Trace before_;
  Trace now_;
  std::vector<bool> inside_;  // by call: some event's
  std::vector<bool> moving_;  // by call: a view of the host's own
  std::string shape_;         // of what the host's call makes, where that differs: why
  std::set<CallId> supplied_;
};

}  // namespace

bool is_stop(const HostEvent& event) {
  return event.kind == HostEvent::Kind::kPause || event.kind == HostEvent::Kind::kRead;
}

std::optional<size_t> find_pause(const Trace& trace) {
  const auto found = std::ranges::find(trace.events, HostEvent::Kind::kPause, &HostEvent::kind);
  if (found == trace.events.end()) return std::nullopt;
  return static_cast<size_t>(found - trace.events.begin());
}

bool makes_host_data(const Trace& trace, const Call& call) {
  if (!call.writes.empty() || !std::ranges::all_of(call.args, [](const Arg& arg) {
        return !std::holds_alternative<ValueId>(arg) && !std::holds_alternative<std::vector<ValueId>>(arg);
      }))
    return false;
  bool any = false;
  bool all = true;
  for_each_value(call.results, [&](ValueId id) {
    any = true;
    all = all && trace.storages[trace.values[id.index()].storage.index()].external;
  });
  return any && all;
}

std::vector<std::optional<size_t>> events_of_host_data(const Trace& trace) {
  std::vector<size_t> first_use(trace.storages.size(), trace.calls.size());
  for (size_t c = trace.calls.size(); c-- > 0;) {
    const auto use = [&](ValueId id) { first_use[trace.values[id.index()].storage.index()] = c; };
    for_each_value(trace.calls[c].args, use);
  }
  std::vector<std::optional<size_t>> events(trace.externals.size());
  for (size_t x = 0; x < events.size(); ++x) {
    if (trace.externals[x].owner != Owner::kHost) continue;
    const size_t use = first_use[trace.values[trace.externals[x].value.index()].storage.index()];
    for (size_t e = 0; e < trace.events.size(); ++e)
      if (is_stop(trace.events[e]) && trace.events[e].begin.index() <= use) events[x] = e;
  }
  return events;
}

Agreement agree_on_calls(const Trace& before, const Trace& now) { return AgreeOnCalls(before, now).run(); }
Agreement agree(const Trace& before, const Trace& now) {
  Agree both(before, now);
  Agreement agreement = both.run();
  // The same calls with other numbers, which the host has made.
  if (both.is_other_path() && agree_on_calls(before, now).difference.empty())
    agreement.obstacle = std::exchange(agreement.difference, {});
  return agreement;
}

Arg number_read(const Trace& trace, const HostRead& read) {
  const Call& call = trace.calls[read.call.index()];
  INTERNAL_CHECK(!call.results.empty(), "host read {}", call.op);
  const auto* made = std::get_if<ValueId>(&call.results.front());
  if (made == nullptr) return call.results.front();
  int64_t elements = 1;
  for (int64_t size : trace.values[made->index()].sizes) elements *= size;
  return elements;
}

bool same_number(const Arg& a, const Arg& b) {
  const auto x = number_of(a);
  const auto y = number_of(b);
  return x && y && x->kind == y->kind && passes_on(*x, *y);
}

}  // namespace stepc
