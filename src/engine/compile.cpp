#include "engine/compile.h"

#include <chrono>

#include "schedule/schedule.h"

namespace stepc {

//   Trace --schedule--> Schedule --bind--> Executable
//
// `fast` mode will go Trace -> Graph -> passes -> Graph first; everything after the Schedule stays the same.
Compiled compile_exact(const Trace& trace, int threads) {
  const auto begin = std::chrono::steady_clock::now();
  verify(trace);
  Schedule schedule = schedule_trace(trace, threads);
  verify(trace, schedule);
  Compiled compiled;
  compiled.executable = std::make_unique<Executable>(trace, std::move(schedule));
  compiled.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return compiled;
}

}  // namespace stepc
