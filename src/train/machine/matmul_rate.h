// The rate of matmuls that MFU is relative to.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "train/config/run_config.h"

namespace stepc::train {

// Operations a second on large matrices: LibTorch's matmuls, or stepc's own where they are faster and the run uses
// them.
struct RunRate {
  double measured = 0;    // here, in some tenths of a second
  double by_default = 0;  // what predictions take for it that know no machine's rates; 0: nothing of this dtype
};
// Of the CPU, or by the library of the device where the run is. `config.train.threads` is in effect.
RunRate measure_run_rate(const RunConfig& config, const at::Device& device = at::kCPU);

// A line where a run in float16 is much slower than it would be in bfloat16, from the rates of both.
std::optional<std::string> slow_float16(double float16_rate, double bfloat16_rate);
// The same, measured; nullopt in other dtypes.
std::optional<std::string> slow_float16_here(const RunConfig& config);

}  // namespace stepc::train
