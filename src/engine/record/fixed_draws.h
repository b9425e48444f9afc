// Random draws that are the same for every element, whatever the shape: so a step that runs on a batch and on a padded
// copy of it can be compared, although draws depend on shapes.
#pragma once

#include <functional>

#include "capture/recorder.h"

namespace stepc {

// Runs `step` of a recording with fixed draws: a Bernoulli variable gives its probability (dropout keeps everything), a
// uniform one the middle of its range, a normal one half a deviation above its mean, an integer the least, an
// exponential one its mean, a permutation the identity. Other distributions draw as usual. The generators advance as
// they would without this.
StepOutput with_fixed_draws(const std::function<StepOutput()>& step);

}  // namespace stepc
