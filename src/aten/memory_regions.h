// Which tensors lie on memory of each other's: windows of one storage that overlap, directly or through others, are one
// region. Windows that only stand beside each other (two batches sliced from one tensor of data) are not.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ir/trace.h"

namespace stepc {

struct MemoryRegion {
  c10::StorageImpl* storage = nullptr;
  int64_t begin = 0;  // bytes from the storage's begin
  int64_t end = 0;
  std::vector<size_t> tensors;  // in their order
};

// Whether the tensor's class says what its sizes and its memory are: nested tensors, subclasses with a
// __torch_dispatch__ (fake tensors too). Asked for either, they may raise.
bool has_own_sizes(const at::Tensor& tensor);

// Whether the tensor is dense memory of the host's, or of a device whose allocator is hooked (device_hook.h): all
// others lie in no region.
bool is_planned(const at::Tensor& tensor);
bool is_planned(const c10::Device& device);

// Where a storage of the trace lies.
c10::Device device_of(const Trace& trace, StorageId storage);

// All of a storage, as bytes, and those of it on the host; and back.
at::Tensor whole(const c10::Storage& storage);
std::string bytes_of(const c10::Storage& storage);
void put_bytes(const c10::Storage& storage, const std::string& bytes);

// The bytes that a dense tensor's window spans, from its storage's begin; an empty window spans none.
std::pair<int64_t, int64_t> span_of(const at::Tensor& tensor);

// In the order of their first tensors.
std::vector<MemoryRegion> memory_regions(const std::vector<at::Tensor>& tensors);

}  // namespace stepc
