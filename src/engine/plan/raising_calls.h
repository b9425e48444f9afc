// The calls of a step that, depending on data, may end a replay with an error or make tensors of other sizes than
// recorded: all calls whose kernel stepc does not describe, and among the others those that inspect indices, classes,
// probabilities or divisors. A replay first copies what it writes before such a call, so that the step can then run
// eagerly.
#pragma once

#include <set>
#include <string>

#include "ir/trace.h"
#include "schedule/schedule.h"

namespace stepc {

class RaisingCalls {
 public:
  explicit RaisingCalls(const Trace& trace);

  [[nodiscard]] bool include(CallId call) const { return calls_.contains(call); }
  // Of the trace's Schedule, or of its Graph's.
  [[nodiscard]] bool include(const Instruction& instruction) const;

 private:
  std::set<CallId> calls_;
  std::set<std::string> ops_;  // of those
};

}  // namespace stepc
