// What a CUDA device says of itself.
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include "aten/device_facts.h"
#include "device/cuda_driver.h"

namespace stepc {

extern "C" __attribute__((visibility("default"))) bool stepc_cuda_facts(c10::DeviceIndex device, DeviceFacts* facts) {
  const c10::cuda::CUDAGuard on(device);
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device);
  facts->name = properties.name;
  for (const char byte : properties.uuid.bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto value = static_cast<unsigned char>(byte);
    facts->id += {kDigits[value / 16], kDigits[value % 16]};
  }
  facts->compute_capability = 10 * properties.major + properties.minor;
  if (CudaDriver(CudaDriver::OfCurrentContext()).why_not().empty()) {
    facts->multiprocessors = properties.multiProcessorCount;
    facts->shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  }
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return false;
  facts->total_bytes = total;
  facts->free_bytes = free;
  if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return true;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  facts->free_bytes += static_cast<uint64_t>(stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current);
  return true;
}

}  // namespace stepc
