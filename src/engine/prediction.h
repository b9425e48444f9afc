// What a plan's replay should take on this machine, beside what it takes.
#pragma once

#include <filesystem>

#include "cost/target.h"
#include "schedule/schedule.h"

namespace stepc {

struct Prediction {
  double seconds = 0;
  bool is_calibrated = false;  // from this machine's own rates; else from the default's
};

// This machine, which `stepc calibrate` has measured, with the threads and features of `schedule`; or the default.
struct KnownTarget {
  Target target;
  bool is_calibrated = false;
};
KnownTarget known_target(const std::filesystem::path& kernel_directory, const Schedule& schedule);

Prediction predict(const Schedule& schedule, const KnownTarget& known);

// "41.2 ms a step", and where the rates are from.
std::string to_text(const Prediction& prediction);

}  // namespace stepc
