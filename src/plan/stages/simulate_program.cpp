#include "plan/stages/simulate_program.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"

namespace stepc {

double ProgramTimeline::idle_share(int64_t rank) const {
  return seconds > 0 ? 1 - busy.at(static_cast<size_t>(rank)) / seconds : 0;
}

double ProgramTimeline::idle_share() const {
  const double sum = std::accumulate(busy.begin(), busy.end(), 0.0);
  return seconds > 0 ? 1 - sum / (seconds * static_cast<double>(busy.size())) : 0;
}

ProgramTimeline simulate(const StageProgram& program, const std::vector<double>& function_seconds,
                         const std::function<double(const StageCall& send)>& message_seconds) {
  ProgramTimeline timeline;
  timeline.busy.resize(program.calls.size());
  std::vector<double> now(program.calls.size());
  std::map<std::pair<int64_t, uint32_t>, double> there;  // by rank that it goes to, and message
  const std::vector<size_t> ended = run_in_turns(program, [&](size_t rank, const StageCall& call) {
    if (call.kind == StageCall::Kind::kRun) {
      now[rank] += function_seconds.at(call.function);
      timeline.busy[rank] += function_seconds.at(call.function);
    } else if (call.kind == StageCall::Kind::kSend) {
      there[{call.peer, call.message}] = now[rank] + message_seconds(call);
    } else if (call.kind == StageCall::Kind::kReceive) {
      const auto sent = there.find({static_cast<int64_t>(rank), call.message});
      if (sent == there.end()) return false;
      now[rank] = std::max(now[rank], sent->second);
    }
    return true;
  });
  for (size_t rank = 0; rank < ended.size(); ++rank) {
    if (ended[rank] == program.calls[rank].size()) continue;
    check_ends(program);  // says what the rank waits for
    INTERNAL_CHECK(false, "the simulated calls of rank {} do not end", rank);
  }
  timeline.seconds = *std::ranges::max_element(now);
  return timeline;
}

}  // namespace stepc
