#include "capture/made_tensors.h"

#include <unordered_set>

namespace stepc {

void MadeTensors::note(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.has_storage()) made_.emplace_back(tensor.getIntrusivePtr());
}

void MadeTensors::note(c10::ArrayRef<c10::IValue> results) {
  for (const c10::IValue& result : results) {
    if (result.isTensor()) note(result.toTensor());
    if (result.isTensorList())
      for (const at::Tensor& tensor : result.toTensorVector()) note(tensor);
  }
}

std::vector<at::Tensor> MadeTensors::held() const {
  std::vector<at::Tensor> held;
  std::unordered_set<const c10::TensorImpl*> met;
  for (const auto& weak : made_) {
    const auto impl = weak.lock();
    if (!impl || !met.insert(impl.get()).second) continue;
    // What C++ holds as well, as `impl` does here, owns one reference to its Python object.
    const c10::impl::PyObjectSlot& slot = *impl->pyobj_slot();
    if (slot.load_pyobj() != nullptr && !slot.has_unique_reference()) held.emplace_back(impl);
  }
  return held;
}

}  // namespace stepc
