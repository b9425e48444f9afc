#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace stepc::optim {

double learning_rate(const LrSchedule& schedule, int64_t step) {
  INTERNAL_CHECK(step >= 0, "step {}", step);
  if (step < schedule.warmup_steps)
    return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  if (schedule.kind == LrSchedule::Kind::kConstant) return schedule.peak;
  const auto decay_steps = static_cast<double>(std::max<int64_t>(1, schedule.total_steps - schedule.warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / decay_steps);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return schedule.peak * (schedule.min_ratio + (1.0 - schedule.min_ratio) * cosine);
}

}  // namespace stepc::optim
