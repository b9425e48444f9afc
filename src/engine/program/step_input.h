// What a door gives the engine for one step: the batch as a flat list, and all other arguments.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/clock.h"

namespace stepc {

struct StepInput {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;  // for log lines, one a tensor; may be empty
  std::string constants;           // everything that is no tensor, and the structure, in words: part of the signature
  Clock::time_point began = {};    // the call, as the program sees it; none: when it is run
};

}  // namespace stepc
