// Where a model's tensors lie: the CPU's memory, or a device's that this PyTorch knows.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace stepc::train {

// "cpu", "cuda", "cuda:1". A UserError that begins with `what` ("train.device") where no such device is here. It is the
// calling thread's current one from then on.
at::Device use_device(const std::string& what, const std::string& name);

// A line where there is an NVIDIA GPU that the run leaves alone; else empty.
std::string unused_gpu(const at::Device& device);

}  // namespace stepc::train
