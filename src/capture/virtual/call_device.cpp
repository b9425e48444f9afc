#include "capture/virtual/call_device.h"

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "aten/device_hook.h"
#include "aten/virtual_device.h"
#include "base/check.h"

namespace stepc {

namespace {

// Calls that may take tensors of the CPU beside those of a device: copies, indices, an optimizer's step counters.
bool may_mix(std::string_view op) {
  for (const std::string_view prefix : {"aten::copy_", "aten::_to_copy", "aten::index", "aten::_index", "aten::_fused_",
                                        "aten::_foreach_", "aten::set_"})
    if (op.starts_with(prefix)) return true;
  return false;
}

bool is_on_device(const c10::Device& device) { return !device.is_cpu() && has_device_hook(device.type()); }

struct SeenDevices {
  std::optional<c10::Device> on_device;
  std::optional<std::vector<int64_t>> on_host;  // a tensor's sizes; one without dimensions is taken for a number
  std::optional<c10::Device> named;             // by an argument

  void see(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (is_on_device(tensor.device()))
      on_device = tensor.device();
    else if (tensor.dim() > 0)
      on_host = tensor.sizes().vec();
  }
  void see(const c10::IValue& value) {
    if (value.isDevice()) named = value.toDevice();
    if (value.isTensor()) see(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) see(tensor);
    if (value.isOptionalTensorList())
      for (const auto& tensor : value.toOptionalTensorVector()) see(tensor.value_or(at::Tensor()));
  }
  [[nodiscard]] std::optional<c10::Device> device() const {
    return on_device || !named || !is_on_device(*named) ? on_device : named;
  }
};

c10::Device numbered(const c10::Device& device) {
  USER_CHECK(!has_virtual_device() || device.index() <= 0,
             "stepc.virtual(device=\"cuda\") has one device, cuda:0, and the program asks for {}", device.str());
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

CallDevice device_of_call(std::string_view op, torch::jit::Stack& stack, size_t count) {
  CallDevice out;
  if (!has_any_device_hook()) return out;
  SeenDevices seen;
  for (size_t a = stack.size() - count; a < stack.size(); ++a) {
    seen.see(stack[a]);
    if (stack[a].isDevice() && is_on_device(stack[a].toDevice())) stack[a] = numbered(stack[a].toDevice());
  }
  USER_CHECK(!seen.on_device || !seen.on_host || may_mix(op),
             "{} takes a tensor on {} and one of [{}] on the CPU, which PyTorch refuses, too{}", op,
             seen.on_device->str(), fmt::join(*seen.on_host, ", "),
             has_virtual_device() ? " (stepc.virtual(device=\"cuda\"))" : "");
  const std::optional<c10::Device> device = seen.device();
  out.takes_device = device.has_value();
  if (device && (!seen.named || is_on_device(*seen.named))) out.made = seen.named ? numbered(*seen.named) : *device;
  return out;
}

std::optional<c10::Device> device_among(c10::ArrayRef<c10::IValue> arguments) {
  SeenDevices seen;
  for (const c10::IValue& value : arguments) seen.see(value);
  return seen.device();
}

}  // namespace stepc
