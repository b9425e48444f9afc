// A step of many kinds of calls, each on a few tensors: two layers with their backward pass, losses, images, clipping
// and an update, none of a model that anybody trains. What one call costs is measured in it, among others, where a step
// makes it.
#pragma once

#include <string>

#include "calibrate/measured.h"

namespace stepc {

// As recorded calls on (side, side) matrices, `side` a multiple of 16, and images of as many elements.
Measured varied_calls(at::ScalarType dtype, int64_t side, int threads);
// As ops of the table and generated kernels, a fused Graph's text.
std::string varied_ops(const std::string& dtype, int64_t side);

}  // namespace stepc
