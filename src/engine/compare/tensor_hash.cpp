#include "engine/compare/tensor_hash.h"

#include "base/hash.h"

namespace stepc {

uint64_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu()) return 0;  // the skeleton of a model, on "meta", has no values
  const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg().contiguous();
  return hash_bytes({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

}  // namespace stepc
