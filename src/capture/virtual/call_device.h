// Where a call works: on the CPU, or on a device whose memory is planned, there or not (aten/virtual_device.h).
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/stack.h>
#include <c10/core/Device.h>

namespace stepc {

struct CallDevice {
  bool takes_device = false;                  // tensors there, or it makes one there
  c10::Device made = c10::Device(c10::kCPU);  // where its results are
};

// Of the call whose arguments are the last `count` on the stack; a device without a number among them gets one. Throws
// UserError where the call names a second device, or takes tensors of both that PyTorch refuses to take together.
CallDevice device_of_call(std::string_view op, torch::jit::Stack& stack, size_t count);

// The device of a tensor, or the device itself, among them.
std::optional<c10::Device> device_among(c10::ArrayRef<c10::IValue> arguments);

}  // namespace stepc
