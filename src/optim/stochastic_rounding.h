// float32 to bfloat16 up or down at random, so that the expectation is the value itself: a bfloat16 weight then follows
// updates that are far below its last place.
#pragma once

#include <ATen/ATen.h>

namespace stepc::optim {

// Draws from the default generator, 16 bits a number; values that bfloat16 can hold stay as they are, infinities and
// NaN too.
at::Tensor stochastically_rounded(const at::Tensor& values);

}  // namespace stepc::optim
