// A profile: the time of each instruction of one run of a step, beside its prediction; as data, as a table and as a
// trace for ui.perfetto.dev. Pure functions of the measurements.
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
  std::string kernel;  // "generated", "blocked", "ATen", "own"
  std::string module;  // "model.layers.0.mlp"
  Phase phase = Phase::kForward;
  Work work;
  double begin_seconds = 0;  // from the beginning of the step
  double seconds = 0;
  double call_begin_seconds = 0, call_seconds = 0;  // on a device: of the host's call, where `seconds` are the device's
  double predicted_seconds = 0;
  std::string work_class;  // a class whose predictions are right or wrong together: "matmul (blocked)"
};

struct Profile {
  std::string mode;         // "exact", "fast"
  std::string device = {};  // "cuda:0"; empty: the CPU
  Target target;
  bool is_calibrated = false;  // the target was measured on this machine; otherwise it is the default
  bool is_predicted = true;    // false: nobody knows the rates of the device
  double seconds = 0;          // of the whole step, with the time between instructions
  double call_seconds = 0;     // on a device: until the host has made its calls
  std::vector<ProfiledInstruction> instructions;  // in the order of the run

  // Appends the profile of what ran next, as part of the same step.
  void append(const Profile& next);
};

// "41.2 us", "41.20 ms", "41.200 s": the format for times of steps and instructions.
std::string time_text(double seconds);

// Sums, then the classes of work, and the kinds of instruction and the modules that took most time, at most `rows` of
// each. Names each class whose prediction was bad.
std::string to_text(const Profile& profile, size_t rows = 15);

// Trace-event JSON with two tracks: instructions as they ran, and one after another with their predicted times. On a
// device a third one: the host's calls.
std::string to_trace_events(const Profile& profile);

}  // namespace stepc
