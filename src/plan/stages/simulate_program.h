// The times at which each rank of a pipeline runs its functions, for given durations of the functions.
#pragma once

#include <functional>
#include <vector>

#include "plan/stages/stage_program.h"

namespace stepc {

struct ProgramTimeline {
  double seconds = 0;        // until the last rank has ended
  std::vector<double> busy;  // by rank: the time in which it computes
  bool operator==(const ProgramTimeline&) const = default;

  // The share of the time in which a rank waits, and in which ranks wait on average: the bubble.
  [[nodiscard]] double idle_share(int64_t rank) const;
  [[nodiscard]] double idle_share() const;
};

// `function_seconds`: by function. `message_seconds`: of a send, from its beginning until all of it has arrived;
// sending takes no time of the rank. Throws UserError, as check_ends(), if ranks wait for each other forever.
ProgramTimeline simulate(const StageProgram& program, const std::vector<double>& function_seconds,
                         const std::function<double(const StageCall& send)>& message_seconds);

}  // namespace stepc
