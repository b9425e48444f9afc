// When each rank of a pipeline runs what, if its functions take as long as they are said to.
#pragma once

#include <functional>
#include <vector>

#include "plan/stages/stage_program.h"

namespace stepc {

struct ProgramTimeline {
  double seconds = 0;        // until the last rank has ended
  std::vector<double> busy;  // by rank, how long it computes
  bool operator==(const ProgramTimeline&) const = default;

  // Which part of the time a rank waits, and ranks on average: the bubble.
  [[nodiscard]] double idle_share(int64_t rank) const;
  [[nodiscard]] double idle_share() const;
};

// `function_seconds`: by function. `message_seconds`: of a send, from its beginning until all of it is there; sends
// take no time of the rank. `program` is one that verify() takes.
ProgramTimeline simulate(const StageProgram& program, const std::vector<double>& function_seconds,
                         const std::function<double(const StageCall& send)>& message_seconds);

}  // namespace stepc
