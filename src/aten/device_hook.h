// What cpu_hook.h is for the host's memory, for that of a device: it stands in front of the device's allocator and asks the
// AllocationClient of the calling thread. Installed once a process and kind of device, never removed.
//
// Depends on LibTorch internals: the table of allocators by kind of device, and PyTorch's CUDA kernels asking
// c10::cuda::CUDACachingAllocator::allocator instead, which libstepc_cuda.so replaces (device/cuda_hook.cpp).
#pragma once

#include <string>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace stepc {

// Idempotent, thread-safe. Returns why plans cannot have memory of such a device; empty if they can.
std::string install_device_hook(c10::DeviceType type);
bool has_device_hook(c10::DeviceType type);
bool has_any_device_hook();

// What the hook of a kind of device is given (device/cuda_hook.cpp). The first: `bytes` bytes from the thread's client, else
// from `base`. The second: what `base` gave, of memory that the first has wrapped to hear of its end; else `memory`.
using DeviceAllocate = c10::DataPtr(c10::Allocator& base, c10::DeviceType type, size_t bytes);
using DeviceUnwrap = const c10::DataPtr&(const c10::DataPtr& memory);
using InstallCudaHook = void(DeviceAllocate*, DeviceUnwrap*);

}  // namespace stepc
