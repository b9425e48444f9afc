// The predicted time of a plan's replay on this machine, beside the measured time.
#pragma once

#include <filesystem>
#include <string>

#include "cost/target.h"
#include "plan/plan_graph.h"
#include "schedule/schedule.h"

namespace stepc {

struct Prediction {
  double seconds = 0;
  bool is_calibrated = false;                        // from this machine's own rates; else from the default's
  double exchange_seconds = 0, exposed_seconds = 0;  // as Timeline's
};

struct KnownTarget {
  Target target;
  bool is_calibrated = false;
};
// This machine, which `stepc calibrate` has measured with so many threads; or the default with these features.
KnownTarget known_target(const std::filesystem::path& kernel_directory, const Features& features, int threads);

Prediction predict(const Schedule& schedule, const KnownTarget& known);

// "41.2 ms a step", and where the rates are from.
std::string to_text(const Prediction& prediction);
// What memory budget "auto" expects of its plan, and of the one without it.
std::string to_text(const AutoBudget& weighed, bool is_calibrated);

}  // namespace stepc
