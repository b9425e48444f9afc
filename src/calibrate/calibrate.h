// calibrate(): measures a Target on this machine: the rates that Schedules are priced with (cost/rates.h). Each is that
// of a kernel as a Schedule runs it, on sizes chosen beforehand; no model is among them.
#pragma once

#include <functional>
#include <string>

#include "cost/target.h"
#include "runtime/kernel_sources.h"

namespace stepc {

// So often everything is measured, of which the shortest time counts. One round takes about ten seconds.
constexpr int kCalibrationRounds = 3;

// With the threads that LibTorch has now; under a minute. `progress` hears what is measured next, and ends
// it all by what it throws. UserError for less than one round.
Target calibrate(KernelSources& kernels, const std::function<void(const std::string&)>& progress = {},
                 int rounds = kCalibrationRounds);

// The rates by kind, for people.
std::string rates_table(const Target& target);

}  // namespace stepc
