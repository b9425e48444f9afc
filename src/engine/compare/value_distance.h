// The distance between two tensors, in one pass over their memory and without copies.
#pragma once

#include <ATen/core/Tensor.h>

namespace stepc {

struct ValueDistance {
  double rms = 0;            // root mean square of the second tensor's finite values
  double apart = 0;          // of the differences, where both are finite
  bool finite_alike = true;  // neither is finite where the other is not
};

// Two defined tensors of one floating type and shape; of any strides. The same bits on any number of threads.
ValueDistance value_distance(const at::Tensor& first, const at::Tensor& second);

}  // namespace stepc
