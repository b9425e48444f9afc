// What ranks do together around an unchanged loop in which each has rows of its own: they average gradients, and take
// values from one rank. Tensors are sent together, a bucket at a time. All ranks give tensors of the same dtypes and
// shapes, in the same order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/ranks.h"

namespace stepc {

// In place, the mean over all ranks. `which`: the tensors' names, a line each; UserError on all ranks where they
// differ.
void average(Ranks& ranks, const std::vector<at::Tensor>& tensors, const std::string& which);
// Whether the tensors have other values on one rank than on another. UserError where they are others.
bool differ(Ranks& ranks, const std::vector<at::Tensor>& tensors);
// Each becomes what it is on the rank that `owners` has for it.
void share(Ranks& ranks, const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& owners);

}  // namespace stepc
