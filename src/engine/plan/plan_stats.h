// What a step's Stats count about its plans and their runs.
#pragma once

#include <vector>

#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/stats.h"

namespace stepc {

// A plan was made; `tensors` are the program's by its keys, then the batch's.
void count_plan(Stats& stats, const Program& program, const Plan& plan, const std::vector<at::Tensor>& tensors);
// The plan ran.
void count_run(Stats& stats, const Plan& plan, const StepResult& result);
// With memory budget "auto": a replay took this long. Once replays are warm, the report states their time beside the
// expected one.
void compare_with_expected(Stats& stats, Plan& plan, double seconds);

}  // namespace stepc
