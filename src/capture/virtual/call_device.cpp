#include "capture/virtual/call_device.h"

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

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

struct SeenDevices {
  bool on_device = false;
  std::optional<std::vector<int64_t>> on_host;  // a tensor's sizes; one without dimensions is taken for a number
  std::optional<c10::Device> named;             // by an argument

  void see(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.is_cuda())
      on_device = true;
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
  [[nodiscard]] bool is_there() const { return on_device || (named && named->is_cuda()); }
};

c10::Device only_device(const c10::Device& device) {
  USER_CHECK(device.index() <= 0, "stepc.virtual(device=\"cuda\") has one device, cuda:0, and the program asks for {}",
             device.str());
  return kVirtualDevice;
}

}  // namespace

CallDevice device_of_call(std::string_view op, torch::jit::Stack& stack, size_t count) {
  CallDevice out;
  if (!has_virtual_device()) return out;
  SeenDevices seen;
  for (size_t a = stack.size() - count; a < stack.size(); ++a) {
    seen.see(stack[a]);
    if (stack[a].isDevice() && stack[a].toDevice().is_cuda()) stack[a] = only_device(stack[a].toDevice());
  }
  USER_CHECK(!seen.on_device || !seen.on_host || may_mix(op),
             "{} takes a tensor on cuda:0 and one of [{}] on the CPU, which PyTorch refuses, too "
             "(stepc.virtual(device=\"cuda\"))",
             op, fmt::join(*seen.on_host, ", "));
  out.takes_device = seen.is_there();
  if (seen.named ? seen.named->is_cuda() : seen.on_device) out.made = kVirtualDevice;
  return out;
}

bool takes_device(c10::ArrayRef<c10::IValue> arguments) {
  SeenDevices seen;
  for (const c10::IValue& value : arguments) seen.see(value);
  return seen.is_there();
}

}  // namespace stepc
