// What a step's Stats count about its plans and their runs.
#pragma once

#include <vector>

#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/stats.h"

namespace stepc {

// A plan has been made; `tensors` are the program's by its keys, and the batch's after them.
void count_plan(Stats& stats, const Program& program, const Plan& plan, const std::vector<at::Tensor>& tensors);
// It has run.
void count_run(Stats& stats, const Plan& plan, const StepResult& result);
// With memory budget "auto": a replay took so long. Once replays are warm, what they take is said beside what was
// expected.
void compare_with_expected(Stats& stats, Plan& plan, double seconds);

}  // namespace stepc
