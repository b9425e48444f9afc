// Learning-rate schedules: pure functions of the step, counted from 0.
#pragma once

#include <cstdint>

namespace stepc::optim {

struct LrSchedule {
  enum class Kind {
    kConstant,
    kCosine,             // half a cosine from the peak to the end
    kLinear,             // a straight line from the peak to the end
    kWarmupStableDecay,  // the peak until decay_steps before the end, then a straight line
  };
  Kind kind = Kind::kCosine;
  double peak = 1e-3;
  int64_t warmup_steps = 0;  // linear: step 0 gets peak / warmup_steps, step warmup_steps - 1 the peak
  int64_t total_steps = 0;   // where the decay ends; the rate stays there afterwards
  int64_t decay_steps = 0;   // of kWarmupStableDecay
  double min_ratio = 0.1;    // of the peak, at the end of the decay
};

double learning_rate(const LrSchedule& schedule, int64_t step);

}  // namespace stepc::optim
