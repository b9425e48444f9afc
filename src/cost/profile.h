// A profile: what each instruction of one run of a step took, beside what was predicted of it; as data, as a table and
// as a trace for ui.perfetto.dev. Pure functions of what was measured.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cost/target.h"
#include "ir/trace.h"

namespace stepc {

struct ProfiledInstruction {
  size_t index = 0;    // in the plan
  std::string name;    // "matmul", "mul+add+sum", "aten::mm"
  std::string kernel;  // what ran it: "generated", "blocked", "ATen", "own"
  std::string module;  // "model.layers.0.mlp"
  Phase phase = Phase::kForward;
  Work work;
  double begin_seconds = 0;  // from the step's begin
  double seconds = 0;
  double predicted_seconds = 0;
  std::string work_class;  // what predictions are right or wrong about together: "matmul (blocked)"
};

struct Profile {
  std::string mode;  // "exact", "fast"
  Target target;
  bool is_calibrated = false;                     // the target was measured on this machine; else it is the default
  double seconds = 0;                             // the whole step, the time between instructions included
  std::vector<ProfiledInstruction> instructions;  // in the order in which they ran

  // What ran after it, as one step.
  void append(const Profile& next);
};

// "41.2 us", "41.20 ms", "41.200 s": what steps and instructions take.
std::string time_text(double seconds);

// Sums, then the classes of work, and the kinds of instruction and the modules that took most time, at most `rows` of
// each. A class that was predicted badly is named.
std::string to_text(const Profile& profile, size_t rows = 15);

// Trace-event JSON with two tracks: instructions as they ran, and laid end to end as long as predicted.
std::string to_trace_events(const Profile& profile);

}  // namespace stepc
