#include "capture/virtual/stand_ins.h"

#include <optional>

#include <ATen/EmptyTensor.h>

#include "aten/generator_snapshot.h"
#include "aten/memory_regions.h"
#include "aten/virtual_device.h"
#include "aten/virtual_memory.h"
#include "base/check.h"

namespace stepc {

at::Tensor StandIns::replace(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  USER_CHECK(tensor.layout() == c10::Layout::Strided && is_planned(tensor.device()),
             "virtual capture takes dense tensors only, this step uses a {} tensor on {}",
             tensor.layout() == c10::Layout::Strided ? "dense" : "sparse", tensor.device().str());
  if (kind_ == Kind::kHost) return on_host(tensor);
  at::Tensor stand_in;
  if (kind_ == Kind::kMeta) {
    stand_in = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  } else {
    stand_in = at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    // Harmless as weights, probabilities and divisors; as indices, lengths and masks.
    stand_in.fill_(c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) ? 0 : 1);
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
  replaced_.emplace_back(stand_in.storage().unsafeGetStorageImpl(), tensor);
  stand_ins_.push_back(stand_in);
  return stand_in;
}

c10::IValue StandIns::replace(const c10::IValue& argument) {
  if (argument.isTensor()) return replace(argument.toTensor());
  if (argument.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(replace(tensor));
    return list;
  }
  if (argument.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector())
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(replace(*tensor)) : std::nullopt);
    return list;
  }
  // Copies name the device that they go to.
  if (argument.isDevice()) {
    USER_CHECK(is_planned(argument.toDevice()),
               "virtual capture: this step copies a tensor to {}, where it has no others", argument.toDevice().str());
    return c10::Device(kind_ == Kind::kMeta ? c10::kMeta : c10::kCPU);
  }
  if (argument.isGenerator() && !is_cpu_generator(argument.toGenerator())) return {};
  return argument;
}

at::Tensor StandIns::give_back(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (kind_ == Kind::kHost) return device_.is_cpu() ? tensor : on_virtual_device(tensor);
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  for (const auto& [stand_in, original] : replaced_)
    if (stand_in == storage)
      return tensor_on(original.storage(), tensor.sizes(), tensor.strides(),
                       original.storage_offset() + tensor.storage_offset(), tensor.scalar_type());
  for (const auto& [made, given] : made_)
    if (made == storage)
      return tensor_on(given, tensor.sizes(), tensor.strides(), tensor.storage_offset(), tensor.scalar_type());
  made_.emplace_back(storage, virtual_storage(storage->nbytes(), device_));
  return tensor_on(made_.back().second, tensor.sizes(), tensor.strides(), tensor.storage_offset(),
                   tensor.scalar_type());
}

c10::IValue StandIns::give_back(const c10::IValue& result) {
  if (result.isTensor()) return give_back(result.toTensor());
  if (!result.isTensorList()) return result;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : result.toTensorVector()) list.push_back(give_back(tensor));
  return list;
}

}  // namespace stepc
