// MadeTensors: the tensors that a step's calls have made so far, and which of them the program still holds. A tensor
// that only autograd saves for the backward pass is not held: only the graph sees it. Holds weak references.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

namespace stepc {

class MadeTensors {
 public:
  void note(const at::Tensor& tensor);
  // Notes all tensors among a call's results.
  void note(c10::ArrayRef<c10::IValue> results);
  void clear() { made_.clear(); }
  // The made tensors to which a Python object refers, each once, in the order of calls. The caller holds the GIL.
  std::vector<at::Tensor> held() const;

 private:
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made_;
};

}  // namespace stepc
