#include "aten/virtual_memory.h"

#include <utility>

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "aten/virtual_device.h"
#include "base/check.h"

namespace stepc {

namespace {

constexpr const char* kMessage =
    "this tensor has no values: it was made under virtual capture or in a virtual region, where nothing is computed. "
    "What reads its values has to run after it was materialised";

// Marks virtual storages; there is nothing to free.
void no_memory(void*) {}

// StorageImpl turns its data access off for good. The address of a private member may be named in an explicit
// instantiation, which is how it is turned on again.
struct ThrowsOnAccess {
  friend bool c10::StorageImpl::*throws_on_access(ThrowsOnAccess);
};
bool c10::StorageImpl::*throws_on_access(ThrowsOnAccess);
template <class Tag, bool c10::StorageImpl::*kMember>
struct PrivateMember {
  friend bool c10::StorageImpl::*throws_on_access(Tag) { return kMember; }
};
template struct PrivateMember<ThrowsOnAccess, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

c10::Storage virtual_storage(size_t bytes) { return virtual_storage(bytes, c10::Device(c10::kCPU)); }
c10::Storage virtual_storage(size_t bytes, const c10::Device& device) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                                       c10::DataPtr(nullptr, nullptr, &no_memory, device),
                                                       c10::GetCPUAllocator(), /*resizable=*/true);
  // A tensor without bytes has nothing to protect, and kernels take its null pointer as it is.
  if (bytes != 0) storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kMessage);
  return c10::Storage(std::move(storage));
}

at::Tensor tensor_on(const c10::Storage& storage, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                     c10::ScalarType dtype) {
  const c10::DispatchKey key = c10::computeDispatchKey(std::nullopt, c10::Layout::Strided, storage.device());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

at::Tensor virtual_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) {
  return virtual_tensor(sizes, strides, dtype, c10::Device(c10::kCPU));
}
at::Tensor virtual_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                          const c10::Device& device) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  return tensor_on(virtual_storage(bytes, device), sizes, strides, 0, dtype);
}

bool is_virtual(const c10::StorageImpl& storage) {
  // The accessor without checks is not const.
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get_deleter() == &no_memory;
}

bool is_virtual(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && is_virtual(*tensor.storage().unsafeGetStorageImpl());
}

void materialise(const at::Tensor& tensor) {
  if (!is_virtual(tensor)) return;
  USER_CHECK(!is_on_virtual_device(tensor.device()),
             "a tensor on {} has no memory on this machine: materialise the module on the CPU", tensor.device().str());
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  c10::DataPtr memory;
  try {
    const c10::OptionalDeviceGuard there(tensor.is_cpu() ? std::nullopt : std::optional(tensor.device()));
    memory = c10::GetAllocator(tensor.device().type())->allocate(storage->nbytes());
  } catch (const c10::Error&) {
    user_error("there is no memory for a tensor of {}: materialise fewer tensors at a time, or on a larger machine",
               human_bytes(storage->nbytes()));
  }
  storage->*throws_on_access(ThrowsOnAccess()) = false;
  storage->set_data_ptr_noswap(std::move(memory));  // takes the changed switch into account
}

void dematerialise(const at::Tensor& tensor, const std::string& why) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == 0) return;
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, nullptr, &no_memory, storage->device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

}  // namespace stepc
