// The predicted time of a plan's replay on this machine, beside the measured time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

#include "cost/target.h"
#include "plan/plan_graph.h"
#include "plan/simulate.h"
#include "schedule/schedule.h"

namespace stepc {

struct Config;

struct Prediction {
  double seconds = 0;
  bool is_calibrated = false;                        // from this machine's own rates; otherwise from the default's,
  bool is_scaled = false;                            // which a measurement of this machine has scaled,
  bool is_of_card = false;                           // or from what is published of the GPU
  double exchange_seconds = 0, exposed_seconds = 0;  // as in Timeline
};

struct KnownTarget {
  Target target;
  bool is_calibrated = false;
};
// This machine as `stepc calibrate` has measured it with this number of threads; else the default with these features.
KnownTarget known_target(const std::filesystem::path& kernel_directory, const Features& features, int threads);

// That, or Config::target where it is a CPU's. UserError for one of another number of threads.
KnownTarget known_target(const Config& config, const Features& features, int threads);

// A device's card as cost/named_target.h has it; nullopt for another one, whose line says so: "weighs by rates, and
// ...".
std::optional<Target> target_of_card(const c10::Device& device);
std::string why_not_weighed(const c10::Device& device);

// Whether that machine is of the kind that runs the Schedule: a GPU where it is a device's.
bool is_priced(const Schedule& schedule, const KnownTarget& known);
// simulate(), of recorded calls too, which are planned for no kind of machine.
Timeline timeline_of(const Schedule& schedule, const KnownTarget& known);
Prediction predict(const Schedule& schedule, const KnownTarget& known);

// "from this machine's rates"
std::string_view source_of(const Prediction& prediction);
// "41.2 ms a step", and the source of the rates.
std::string to_text(const Prediction& prediction);
// What memory budget "auto" expects of its plan, and of the plan without a budget.
std::string to_text(const AutoBudget& weighed, const KnownTarget& known);

}  // namespace stepc
