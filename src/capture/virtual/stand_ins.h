// Arguments of one call replaced by tensors of the same geometry that a kernel may be given, and the kernel's results
// turned back into tensors of the program: aliases of its arguments, or on virtual storages.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace stepc {

class StandIns {
 public:
  enum class Kind {
    kMeta,    // no memory, for shape kernels
    kValues,  // ones, and zeros among integers, for real kernels
    kHost,    // of known tensors on the virtual device (aten/virtual_device.h): the memory that they have, for the same
  };
  // Results are made on `device`.
  StandIns(Kind kind, const c10::Device& device) : kind_(kind), device_(device) {}

  // Every tensor inside `argument` replaced; other constants as they are.
  c10::IValue replace(const c10::IValue& argument);

  // A result computed from stand-ins, as the program gets it.
  c10::IValue give_back(const c10::IValue& result);

 private:
  at::Tensor replace(const at::Tensor& tensor);
  at::Tensor give_back(const at::Tensor& tensor);

  Kind kind_;
  c10::Device device_;
  std::vector<std::pair<c10::StorageImpl*, at::Tensor>> replaced_;  // stand-in's storage, the tensor it stands for
  std::vector<at::Tensor> stand_ins_;                               // keep those storages alive
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> made_;    // kernel's storage, the program's
};

}  // namespace stepc
