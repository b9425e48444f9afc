#include "ir/moving_windows.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/text.h"

namespace stepc {

namespace {
std::string key_of(size_t call) { return str("view {}", call); }

const ValueId* only_result(const Call& call) {
  return call.results.size() == 1 && call.writes.empty() ? std::get_if<ValueId>(&call.results.front()) : nullptr;
}
const ValueId* base_of(const Call& call) {
  return call.args.empty() ? nullptr : std::get_if<ValueId>(&call.args.front());
}

// By storage: the program's, and neither written nor handed on by the step.
std::vector<bool> only_read(const Trace& trace) {
  std::vector<bool> out(trace.storages.size(), false);
  const auto storage_of = [&](ValueId value) { return trace.values[value.index()].storage.index(); };
  for (const External& external : trace.externals)
    out[storage_of(external.value)] = external.owner == Owner::kCaptured || external.owner == Owner::kBatch ||
                                      external.owner == Owner::kConstant || external.owner == Owner::kHost;
  const auto drop = [&](ValueId value) {
    if (value.valid()) out[storage_of(value)] = false;
  };
  for (const Call& call : trace.calls)
    for (ValueId value : call.writes) drop(value);
  for (ValueId value : trace.outputs) drop(value);
  for (const Rebinding& rebinding : trace.rebindings) drop(rebinding.value);
  return out;
}

// What call `c` makes and all that is seen of it through views; nothing where some of it is reached otherwise, too.
std::optional<std::set<ValueId>> seen_through(const Trace& trace, size_t c) {
  const StorageId storage = trace.values[base_of(trace.calls[c])->index()].storage;
  std::set<ValueId> inside = {*only_result(trace.calls[c])};
  std::set<ValueId> outside;
  for (const External& external : trace.externals) outside.insert(external.value);
  for (size_t d = 0; d < trace.calls.size(); ++d) {
    if (d == c) continue;
    const Call& call = trace.calls[d];
    bool of_inside = false;
    for_each_value(call.args, [&](ValueId value) {
      of_inside = of_inside || (d > c && inside.contains(value));
      if (d < c) outside.insert(value);
    });
    for_each_value(call.results, [&](ValueId value) {
      if (trace.values[value.index()].storage == storage) (of_inside ? inside : outside).insert(value);
    });
  }
  const bool apart = std::ranges::none_of(inside, [&](ValueId value) { return outside.contains(value); });
  return apart ? std::optional(std::move(inside)) : std::nullopt;
}

// False: it cannot be one.
bool make_moving(Trace& trace, size_t c) {
  if (makes_moving_window(trace, c)) return true;
  const auto inside = seen_through(trace, c);
  if (!inside) return false;
  const ValueId made = *only_result(trace.calls[c]);
  const Value& window = trace.values[made.index()];
  const int64_t begin = window.offset * size_of(window.dtype);
  const int64_t bytes = (extent_of(window) - window.offset) * size_of(window.dtype);
  for (ValueId id : *inside) {
    const Value& value = trace.values[id.index()];
    const int64_t size = size_of(value.dtype);
    const int64_t from = value.offset * size - begin;
    if (from < 0 || from % size != 0 || extent_of(value) * size - begin > bytes) return false;
  }
  const StorageId storage(trace.storages.size());
  trace.storages.push_back({static_cast<uint64_t>(bytes), true, false});
  for (ValueId id : *inside) {
    Value& value = trace.values[id.index()];
    value.offset -= begin / size_of(value.dtype);
    value.storage = storage;
  }
  trace.externals.push_back({Owner::kHost, key_of(c), made});
  trace.constants.push_back({key_of(c), ""});
  return true;
}
}  // namespace

bool makes_moving_window(const Trace& trace, size_t c) {
  const ValueId* made = only_result(trace.calls[c]);
  if (made == nullptr || !made->valid()) return false;
  return std::ranges::any_of(trace.externals, [&](const External& external) {
    return external.owner == Owner::kHost && external.value == *made && external.key == key_of(c);
  });
}

std::vector<bool> find_moving_windows(Trace& before, Trace& now) {
  std::vector<bool> moving(now.calls.size(), false);
  const std::vector<bool> read_before = only_read(before);
  const std::vector<bool> read_now = only_read(now);
  const auto may_move = [](const Trace& trace, const std::vector<bool>& read, size_t c) {
    const Call& call = trace.calls[c];
    const ValueId* made = only_result(call);
    const ValueId* base = base_of(call);
    if (made == nullptr || base == nullptr || !made->valid() || !base->valid()) return false;
    const size_t storage = trace.values[base->index()].storage.index();
    if (makes_moving_window(trace, c)) return true;
    return is_view(trace, call) && (storage >= read.size() || read[storage]);  // of a window that was just made
  };
  for (size_t c = 0; c < std::min(before.calls.size(), now.calls.size()); ++c) {
    const Call& x = before.calls[c];
    const Call& y = now.calls[c];
    if (x.op != y.op || x.args.size() != y.args.size()) break;
    bool differs = makes_moving_window(before, c) || makes_moving_window(now, c);
    for (size_t a = 0; a < x.args.size(); ++a)
      differs = differs || (std::holds_alternative<int64_t>(x.args[a]) && std::holds_alternative<int64_t>(y.args[a]) &&
                            x.args[a] != y.args[a]);
    if (!differs || !may_move(before, read_before, c) || !may_move(now, read_now, c)) continue;
    moving[c] = make_moving(before, c) && make_moving(now, c);
  }
  return moving;
}

}  // namespace stepc
