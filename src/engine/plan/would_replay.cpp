#include "engine/plan/would_replay.h"

#include <algorithm>
#include <string>

#include "ir/agree.h"

namespace stepc {

namespace {
const std::string* bytes_of_constant(const Trace& trace, const Arg& arg) {
  const auto* value = std::get_if<ValueId>(&arg);
  if (value == nullptr) return nullptr;
  for (const External& external : trace.externals) {
    if (external.owner != Owner::kConstant || external.value != *value) continue;
    const auto found = std::ranges::find(trace.constants, external.key, &Constant::key);
    return found == trace.constants.end() ? nullptr : &found->bytes;
  }
  return nullptr;
}

// Whether both events have the same calls, with the same host data in them.
bool have_same_calls(const Trace& a, const HostEvent& in_a, const Trace& b, const HostEvent& in_b) {
  const size_t calls = in_a.end.index() - in_a.begin.index();
  if (in_b.end.index() - in_b.begin.index() != calls) return false;
  for (size_t c = 0; c < calls; ++c) {
    const Call &one = a.calls[in_a.begin.index() + c], &other = b.calls[in_b.begin.index() + c];
    if (one.op != other.op || one.args.size() != other.args.size()) return false;
    for (size_t i = 0; i < one.args.size(); ++i) {
      if (one.args[i].index() != other.args[i].index() && !std::holds_alternative<ReadNumber>(one.args[i]))
        return false;
      const std::string* then = bytes_of_constant(a, one.args[i]);
      const std::string* now = bytes_of_constant(b, other.args[i]);
      if (then != nullptr && now != nullptr && *then != *now) return false;
    }
  }
  return true;
}
}  // namespace

bool would_replay(const Trace& then, const Trace& now) {
  for (size_t e = 0; e < std::min(then.events.size(), now.events.size()); ++e) {
    const HostEvent &a = then.events[e], &b = now.events[e];
    if (a.key != b.key || a.kind != b.kind) break;
    if (a.kind == HostEvent::Kind::kShadow && !have_same_calls(then, a, now, b)) return false;
  }
  const std::vector<HostRead>& reads = then.reads;
  for (size_t r = 0; r < reads.size() && r < now.reads.size(); ++r)
    if (reads[r].guard && !same_number(number_read(then, reads[r]), number_read(now, now.reads[r]))) return false;
  return true;
}

}  // namespace stepc
