// libstepc_cuda.so, in which everything is that needs PyTorch's CUDA headers. install_device_hook(kCUDA) opens it. A
// backend of somebody's own may bring the same functions.
#pragma once

#include <string>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace stepc {

// stepc_cuda_NAME of the library, or for another kind of device the stepc_device_NAME that the process has; nullptr
// where there is none.
void* device_symbol(const c10::Device& device, const std::string& name);

// The CUDA stream (cudaStream_t) that PyTorch's stands for. UserError without the library.
void* native_stream(const c10::Stream& stream);

}  // namespace stepc
