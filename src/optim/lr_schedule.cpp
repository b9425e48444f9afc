#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace stepc::optim {

double learning_rate(const LrSchedule& schedule, int64_t step) {
  INTERNAL_CHECK(step >= 0, "step {}", step);
  using Kind = LrSchedule::Kind;
  if (step < schedule.warmup_steps)
    return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  if (schedule.kind == Kind::kConstant) return schedule.peak;
  const int64_t begin = schedule.kind == Kind::kWarmupStableDecay
                            ? std::max(schedule.warmup_steps, schedule.total_steps - schedule.decay_steps)
                            : schedule.warmup_steps;
  const auto decay_steps = static_cast<double>(std::max<int64_t>(1, schedule.total_steps - begin));
  const double progress = std::clamp(static_cast<double>(step - begin) / decay_steps, 0.0, 1.0);
  const double left =
      schedule.kind == Kind::kCosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
  return schedule.peak * (schedule.min_ratio + (1.0 - schedule.min_ratio) * left);
}

}  // namespace stepc::optim
