// Which calls of a step may end a replay with an error, or make tensors of other sizes than recorded, by what they find
// in data: all whose kernel nobody here describes, and of the others those that look at indices, classes,
// probabilities or divisors. What a replay has written by then is copied before it, so that the step can run as it is.
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
