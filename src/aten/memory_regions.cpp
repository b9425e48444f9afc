#include "aten/memory_regions.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <tuple>

#include <ATen/Functions.h>

#include "aten/device_hook.h"
#include "aten/virtual_device.h"

namespace stepc {

bool has_own_sizes(const at::Tensor& tensor) {
  return tensor.is_nested() || tensor.key_set().has(c10::DispatchKey::Python);
}

bool is_planned(const c10::Device& device) { return device.is_cpu() || has_device_hook(device.type()); }

c10::Device device_of(const Trace& trace, StorageId storage) {
  const bool is_host = trace.storages[storage.index()].space == Space::kHost;
  return is_host ? c10::Device(c10::kCPU) : c10::Device(trace.device);
}

bool is_planned(const at::Tensor& tensor) {
  return tensor.layout() == c10::Layout::Strided && is_planned(tensor.device()) && tensor.has_storage() &&
         !has_own_sizes(tensor);
}

at::Tensor whole(const c10::Storage& storage) {
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device())).set_(storage);
}

namespace {
bool is_in_host_memory(const c10::Storage& storage) { return storage.device().is_cpu() || has_virtual_device(); }
}  // namespace

std::string bytes_of(const c10::Storage& storage) {
  if (is_in_host_memory(storage)) return {static_cast<const char*>(storage.data()), storage.nbytes()};
  const at::Tensor on_host = whole(storage).to(at::kCPU);
  return {static_cast<const char*>(on_host.const_data_ptr()), on_host.nbytes()};
}

void put_bytes(const c10::Storage& storage, const std::string& bytes) {
  if (is_in_host_memory(storage))
    std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
  else
    whole(storage).copy_(
        at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte));
}

std::pair<int64_t, int64_t> span_of(const at::Tensor& tensor) {
  const auto size = static_cast<int64_t>(tensor.element_size());
  const int64_t begin = tensor.storage_offset() * size;
  if (tensor.numel() == 0) return {begin, begin};
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) elements += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + elements * size};
}

std::vector<MemoryRegion> memory_regions(const std::vector<at::Tensor>& tensors) {
  std::vector<MemoryRegion> windows;
  windows.reserve(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].defined() || !is_planned(tensors[t])) continue;
    const auto [begin, end] = span_of(tensors[t]);
    windows.push_back({tensors[t].storage().unsafeGetStorageImpl(), begin, end, {t}});
  }
  if (windows.size() < 2) return windows;
  std::ranges::sort(windows, [](const MemoryRegion& a, const MemoryRegion& b) {
    if (a.storage != b.storage) return std::less<>()(a.storage, b.storage);
    return std::tie(a.begin, a.end, a.tensors) < std::tie(b.begin, b.end, b.tensors);
  });
  std::vector<MemoryRegion> regions;
  for (MemoryRegion& window : windows) {
    if (!regions.empty() && regions.back().storage == window.storage) {
      MemoryRegion& last = regions.back();
      if (window.begin < last.end || window.begin == last.begin) {
        last.end = std::max(last.end, window.end);
        last.tensors.push_back(window.tensors.front());
        continue;
      }
    }
    regions.push_back(std::move(window));
  }
  for (MemoryRegion& region : regions) std::ranges::sort(region.tensors);
  std::ranges::sort(regions, {}, [](const MemoryRegion& region) { return region.tensors.front(); });
  return regions;
}

}  // namespace stepc
