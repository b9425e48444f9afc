#include "engine/record/open_recordings.h"

#include <utility>

namespace stepc {

namespace {
constexpr size_t kMostOpen = 3;
}  // namespace

Refusal refusal_of(const Recording& recording) {
  return recording.obstacles.empty() ? Refusal{} : Refusal{recording.obstacles.front(), true};
}

std::optional<Trace> agreed_trace(const Trace& before, const Trace& now, bool by_calls, Refusal& refusal) {
  Agreement agreement = by_calls ? agree_on_calls(before, now) : agree(before, now);
  if (agreement.difference.empty() && agreement.obstacle.empty()) return std::move(agreement.trace);
  refusal.is_obstacle = agreement.difference.empty();
  refusal.reason = std::move(refusal.is_obstacle ? agreement.obstacle : agreement.difference);
  return std::nullopt;
}

std::optional<Trace> OpenRecordings::agree_with_one(const Trace& now, bool by_calls, Refusal& refusal) {
  for (size_t t = traces_.size(); t-- > 0;) {
    std::optional<Trace> agreed = agreed_trace(traces_[t], now, by_calls, refusal);
    if (!agreed) continue;
    traces_.erase(traces_.begin() + static_cast<ssize_t>(t));
    return agreed;
  }
  return std::nullopt;
}

void OpenRecordings::keep(Trace trace) {
  if (traces_.size() == kMostOpen) traces_.erase(traces_.begin());
  traces_.push_back(std::move(trace));
}

bool OpenRecordings::meets_again(const Refusal& refusal) {
  const bool again = refusal.is_obstacle && refusal.reason == last_obstacle_;
  last_obstacle_ = refusal.is_obstacle ? refusal.reason : std::string();
  return again;
}

void OpenRecordings::clear() { traces_.clear(); }

}  // namespace stepc
