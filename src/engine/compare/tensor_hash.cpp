#include "engine/compare/tensor_hash.h"

#include "base/hash.h"

namespace stepc {

uint64_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return 0;  // the skeleton of a model has no values
  const at::Tensor dense = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  return hash_bytes({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

}  // namespace stepc
