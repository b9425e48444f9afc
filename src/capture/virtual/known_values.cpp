#include "capture/virtual/known_values.h"

#include "aten/memory_regions.h"
#include "aten/virtual_memory.h"

namespace stepc {

namespace {
bool counts(c10::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true); }

bool is_assumed_known(const at::Tensor& tensor) {
  if (is_virtual(tensor)) return false;
  return tensor.storage().nbytes() <= (counts(tensor.scalar_type()) ? kLargestKnownInteger : kLargestAssumedFloat);
}
}  // namespace

size_t largest_filled(c10::ScalarType dtype, bool is_like) {
  if (counts(dtype)) return kLargestKnownInteger;
  return is_like ? kLargestAssumedFloat : kLargestKnownFloat;
}

KnownValues::Storage& KnownValues::find(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (const auto found = storages_.find(storage); found != storages_.end()) return found->second;
  Storage entry{tensor.storage().getWeakStorageImpl(), is_assumed_known(tensor), true, nullptr};
  return storages_.emplace(storage, std::move(entry)).first->second;
}

void KnownValues::mark(const at::Tensor& tensor, bool known) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  find(tensor).known = known && !is_virtual(tensor);
}

bool KnownValues::is_known(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return true;
  if (!tensor.has_storage() || is_virtual(tensor)) return false;
  return find(tensor).known;
}

void KnownValues::made(const at::Tensor& tensor, bool known) {
  if (!tensor.defined() || !tensor.has_storage() || is_virtual(tensor)) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto [found, added] =
      storages_.try_emplace(storage, Storage{tensor.storage().getWeakStorageImpl(), known, false, nullptr});
  if (!added) found->second.known = known;
}

void KnownValues::keep(const at::Tensor& tensor) {
  Storage& entry = find(tensor);
  if (!entry.owned_by_program || entry.before != nullptr) return;
  entry.before = std::make_unique<std::string>(bytes_of(tensor.storage()));
  kept_.push_back(&entry);
}

void KnownValues::keep(const at::Generator& generator) {
  for (const auto& [kept, snapshot] : generators_)
    if (kept == generator) return;
  generators_.emplace_back(generator, read_generator(generator));
}

void KnownValues::restore() {
  for (Storage* entry : kept_) {
    const auto storage = entry->weak.lock();
    if (storage && storage->nbytes() == entry->before->size()) put_bytes(c10::Storage(storage), *entry->before);
    entry->before.reset();
  }
  kept_.clear();
  for (const auto& [generator, snapshot] : generators_) write_generator(generator, snapshot);
  generators_.clear();
}

}  // namespace stepc
