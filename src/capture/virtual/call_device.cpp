#include "capture/virtual/call_device.h"

#include <optional>

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

struct Seen {
  bool on_device = false;
  const at::Tensor* on_host = nullptr;  // with dimensions; one without is taken for a number

  void see(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.is_cuda())
      on_device = true;
    else if (tensor.dim() > 0)
      on_host = &tensor;
  }
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
  Seen seen;
  std::optional<c10::Device> named;
  for (size_t a = stack.size() - count; a < stack.size(); ++a) {
    c10::IValue& value = stack[a];
    if (value.isTensor()) {
      seen.see(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) seen.see(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector()) seen.see(tensor.value_or(at::Tensor()));
    } else if (value.isDevice()) {
      named = value.toDevice();
      if (!named->is_cuda()) continue;
      named = only_device(*named);
      value = *named;
    }
  }
  USER_CHECK(
      !seen.on_device || seen.on_host == nullptr || may_mix(op),
      "{} takes tensors on cuda:0 and on the CPU, as {} here; PyTorch refuses that (stepc.virtual(device=\"cuda\"))",
      op, seen.on_host == nullptr ? "" : c10::str(seen.on_host->sizes()));
  out.takes_device = seen.on_device || (named && named->is_cuda());
  if (named.value_or(seen.on_device ? kVirtualDevice : c10::Device(c10::kCPU)).is_cuda()) out.made = kVirtualDevice;
  return out;
}

}  // namespace stepc
