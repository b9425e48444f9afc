// The geometry of what a factory call makes, read off its arguments: size, stride, dtype, memory_format, and the tensor
// that it is like.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace stepc {

struct FactoryGeometry {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  c10::ScalarType dtype;
  size_t bytes = 0;
  c10::Device device = c10::Device(c10::kCPU);
};

// nullopt for factories whose result is as long as a number says (arange, eye, randperm) or is not dense memory of the
// CPU or the virtual device.
std::optional<FactoryGeometry> factory_geometry(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace stepc
