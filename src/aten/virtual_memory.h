// Virtual storages: what a tensor has whose size is known and whose values are not. They look like CPU memory of
// `nbytes()` bytes and hold none. Reading or writing through their data pointer throws c10::Error that says so: a
// kernel that is run on them by mistake, `tolist()` and `numpy()` fail instead of answering with rubbish. Tensors stay
// CPU tensors, so views, autograd and autocast treat them as any other.
//
// Depends on LibTorch internals: StorageImpl's switch that makes data access throw, which only it can turn on and which
// materialise() turns off again.
#pragma once

#include <cstddef>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace stepc {

// A storage of `bytes` bytes without memory; resizable, as the CPU allocator's are.
c10::Storage virtual_storage(size_t bytes);

// A tensor of this geometry on `storage`, wherever that lies.
at::Tensor tensor_on(const c10::Storage& storage, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset,
                     c10::ScalarType dtype);

// A CPU tensor on a virtual storage just large enough for it.
at::Tensor virtual_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);

bool is_virtual(const c10::StorageImpl& storage);
bool is_virtual(const at::Tensor& tensor);

// Gives a virtual storage real, uninitialised memory in place: every tensor on it has it from now on, views and tied
// parameters included. Tensors that are not virtual are left alone. Throws UserError when there is not enough memory.
void materialise(const at::Tensor& tensor);

// The way back: the storage's memory is freed, and every tensor on it has sizes alone from now on. `why` is what
// reading its values says.
void dematerialise(const at::Tensor& tensor, const std::string& why);

}  // namespace stepc
