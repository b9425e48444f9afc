// Random draws that are the same for every element, whatever the shape: so a step that runs on a batch and on a padded
// copy of it can be compared, although draws depend on shapes.
#pragma once

#include <functional>

#include "capture/recorder.h"

namespace stepc {

// Runs `step` of a recording; what it draws is then: of a Bernoulli variable its probability (dropout keeps
// everything), of a uniform one the middle of its range, of a normal one half a deviation above its mean, of an integer
// the least, of an exponential one its mean, of a permutation the identity. Other distributions are drawn as ever. The
// generators advance as they would.
StepOutput with_fixed_draws(const std::function<StepOutput()>& step);

}  // namespace stepc
